"""The command ``bin/simulate``."""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import click

from psched.reports.findings import Kind
from psched.testing.simulation.plan import MIXES, Step, shrink
from psched.testing.simulation.simulation import Result, Simulation

Make = Callable[..., Simulation]
Run = Callable[[Sequence[int]], Result]
Kinds = set[Kind]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", default=1, show_default=True, help="Decides everything that is random.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, from --seed on.")
@click.option("--hours", default=0.5, show_default=True, help="Hours with faults, for each seed.")
@click.option("--mix", type=click.Choice([*MIXES]), default="all", show_default=True)
@click.option(
    "--pace", default=1, show_default=True, help="How many times as far apart everything is."
)
@click.option("--store", type=click.Choice(["memory", "sqlite"]), default="memory")
@click.option("--only", metavar="N,N", help="Only these steps of the seed's plan, by number.")
@click.option("--log", "shows_log", is_flag=True, help="Show what psched logs, and what is done.")
@click.option("--no-shrink", is_flag=True, help="Do not leave out what a failure does not need.")
def main(  # the options
    *,
    seed: int,
    seeds: int,
    hours: float,
    mix: str,
    pace: int,
    store: str,
    only: str | None,
    shows_log: bool,
    no_shrink: bool,
) -> None:
    """Run psched's own code against faults in simulated time, and check its promises.

    A seed that fails is run again with fewer and fewer faults, and the command that shows what is
    left is printed. It does the same each time. The exit status is 1 if a promise was not kept.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO if shows_log else 60)
    results = []
    for each in range(seed, seed + seeds):
        options = f"--seed {each} --hours {hours:g} --mix {mix} --pace {pace} --store {store}"
        make = partial(Simulation, each, hours, mix=MIXES[mix], pace=pace, store=store)
        plan = make().steps
        numbers = [*range(len(plan))] if only is None else [*map(int, only.split(","))]

        def run(left: Sequence[int], make: Make = make, plan: Sequence[Step] = plan) -> Result:
            return make(steps=[plan[number] for number in left]).run()

        result = run(numbers)
        results.append(result)
        if shows_log:
            click.echo("\n".join(result.log))
        if not result.violations:
            continue
        if not no_shrink and only is None:
            kinds = {violation.kind for violation in result.violations}

            def fails(left: Sequence[int], run: Run = run, kinds: Kinds = kinds) -> bool:
                return any(violation.kind in kinds for violation in run(left).violations)

            numbers = shrink(numbers, fails)
            result = run(numbers)
        click.echo(f"bin/simulate {options} --only {','.join(map(str, numbers))}")
        for number in numbers:
            click.echo(f"    {number}: {plan[number]}")
        for violation in result.violations:
            click.echo(f"  {violation.kind}: {violation.key}: {violation.text}")
    _sum_up(results)
    sys.exit(any(result.violations for result in results))


def _sum_up(results: Sequence[Result]) -> None:
    faults = sum((Counter(result.faults) for result in results), Counter())
    cpu = sum(result.cpu_seconds for result in results)
    hours = sum(result.hours for result in results)
    click.echo(
        f"{len(results)} seeds, {hours:g} hours, {sum(r.runs for r in results)} runs,"
        f" {sum(r.calls for r in results)} requests, {faults.total()} faults;"
        f" {sum(bool(r.violations) for r in results)} seeds failed;"
        f" {cpu:.1f} s of CPU time, {hours / max(cpu, 0.01):.2f} hours each"
    )


if __name__ == "__main__":
    main()
