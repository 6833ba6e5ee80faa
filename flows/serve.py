"""The deployments of a workstation: `train`, one at a time on a cluster, and `iteration`."""

from prefect import serve

from flows.iteration import iteration
from flows.train import train


def main() -> None:
    """Serves both until ended."""
    serve(
        train.to_deployment("train", concurrency_limit=1, description="Run or resume an RL run, by its name."),
        iteration.to_deployment("iteration", concurrency_limit=1, description="One iteration of a run, by its number."),
    )


if __name__ == "__main__":
    main()
