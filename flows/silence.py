"""Flow runs that fell silent: their process or machine died and could not say so."""

from datetime import timedelta

from prefect import get_client
from prefect.automations import Automation, ChangeFlowRunState, EventTrigger, Posture, ResourceSpecification
from prefect.client.schemas.objects import StateType
from prefect.settings import get_current_settings

from tasks import REUSED

NAME = "lora-rl: silent runs have crashed"
HEARTBEATS_MISSED = 3
ENDS = ("Completed", REUSED, "Failed", "TimedOut", "Cancelled", "Crashed")
"""States in which a flow run of ours ends, by name: Prefect has an event for each."""


def silent_runs_crashed(within: timedelta) -> Automation:
    """Marks a flow run as crashed where neither heartbeat nor end was heard of `within` that time of a heartbeat."""
    heartbeat = "prefect.flow-run.heartbeat"
    trigger = EventTrigger(
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        for_each={"prefect.resource.id"},
        after={heartbeat},
        expect={heartbeat, *(f"prefect.flow-run.{end}" for end in ENDS)},
        posture=Posture.Proactive,
        within=within,
    )
    message = f"no heartbeat for {within.total_seconds():g} s: its process is gone; the run can be resumed"
    action = ChangeFlowRunState(name=None, state=StateType.CRASHED, message=message, force=False)
    return Automation(name=NAME, trigger=trigger, actions=[action])


async def watch_for_silence() -> None:
    """Registers it with the Prefect server, in the place of what an earlier call registered."""
    heartbeat_s = get_current_settings().flows.heartbeat_frequency
    if heartbeat_s is None:
        return  # switched off by the user
    automation = silent_runs_crashed(timedelta(seconds=HEARTBEATS_MISSED * heartbeat_s))
    async with get_client() as client:
        for earlier in await client.read_automations_by_name(NAME):
            await client.delete_automation(earlier.id)
    await automation.acreate()
