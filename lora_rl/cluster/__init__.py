"""Ray: joining a cluster, the long-lived actors, and calls with deadlines.

connect.py joins or starts a cluster; actors.py finds and starts named actors; roles.py says which a run needs;
calls.py awaits them; logs.py brings their logs out.
"""

from lora_rl.cluster.actors import ActorGroup
from lora_rl.cluster.connect import connect, disconnect
from lora_rl.cluster.roles import engines, rollouter, trainer

__all__ = ["ActorGroup", "connect", "disconnect", "engines", "rollouter", "trainer"]
