"""``esper probe``: try what would help the model in a Python file."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, Final

import click

from esper_core.leyline.errors import ConfigError, EsperError, Problem, one_line, printable, suggestion
from esper_run.cli.output import print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

NAMES: Final = ("model", "loss", "train", "validation")
"""What the file defines, unless other names are given, in this order. A fifth name is the optimizer."""


@click.command()
@click.argument("file", metavar="FILE[:NAMES]")
@click.option("--budget", default="60s", show_default=True, help="Time limit: 90s, 5min, 1h.")
@click.option("--slots", multiple=True, metavar="NAME", help="A module to try, or a pattern; repeatable.")
@click.option("--blueprints", multiple=True, metavar="NAME", help="A blueprint to try, or a pattern; repeatable.")
@click.option(
    "--price", type=click.FloatRange(min=0.0), help="Gain in nats that each parameter has to bring; default: relative."
)
@click.option(
    "--steps", type=click.IntRange(min=9), help="Training steps of the longest trials [450], or of adapters [100]."
)
@click.option(
    "--adapters",
    multiple=True,
    metavar="LAYERS",
    help="Place adapters: all-linear, attention, mlp, or the end of a layer's name; repeatable.",
)
@click.option("--rank", type=click.IntRange(min=1), help="Rank of adapters [4].")
@click.option(
    "--block", type=click.IntRange(min=1), help="Rank of the blocks in which adapters get the ranks that pay."
)
@click.option("--parameters", type=click.IntRange(min=1), help="Most trainable parameters of the adapters together.")
@click.option("--plan", type=click.Path(path_type=Path, dir_okay=False), help="Also write the plan of adapters here.")
@click.option("--to", "form", type=click.Choice(["peft"]), help="Print the plan of adapters as PEFT's LoraConfig.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="RNG seed.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page to this file.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout.")
def probe(
    file: str,
    budget: str,
    slots: tuple[str, ...],
    blueprints: tuple[str, ...],
    price: float | None,
    steps: int | None,
    seed: int,
    page: Path | None,
    **options: Any,
) -> None:
    """Try which blueprints would help a model, where, by how much, and at what price.

    \b
    esper probe my_model.py
    esper probe my_model.py:net,per_example,loader,held_out --budget 5min
    esper probe my_model.py --slots "blocks.*" --blueprints "conv_*"
    esper probe my_model.py --adapters all-linear --parameters 15000 --to peft

    FILE defines the arguments of esper_grow.probe: model, loss, train and validation, or what NAMES calls them,
    separated by commas; a fifth name is the optimizer.
    """
    from esper_grow.probes.budget import seconds_of

    seconds = seconds_of(budget)
    refuse_unused(options, slots, blueprints)
    refuse_files(page, options["plan"])
    arguments = read_file(*split_names(file))
    model, loss, train, validation, *more = arguments
    optimizer = more[0] if more else None
    common: dict[str, Any] = {"budget": seconds, "price": price, "seed": seed, "optimizer": optimizer}
    if not options["quiet"]:
        common["on_progress"] = lambda text: print_line(printable(text), stream=sys.stderr)
    if steps is not None:
        common["steps"] = steps

    from esper_grow.probes import place_adapters, probe as try_out

    result: Any
    with redirect_stdout(sys.stderr):
        if options["adapters"]:
            names = options["adapters"]  # one may be a word that means many layers
            common |= {name: options[name] for name in ("rank", "block", "parameters") if options[name] is not None}
            common["where"] = names[0] if len(names) == 1 else list(names)
            result = place_adapters(model, loss, train, validation, **common)
        else:
            chosen: dict[str, Any] = {"slots": list(slots) or "auto", "blueprints": list(blueprints) or "auto"}
            result = try_out(model, loss, train, validation, **chosen, **common)
    try:
        if options["form"] == "peft":
            print_line(str(result), stream=sys.stderr)
            arguments = result.to_peft()
            print_json(arguments) if options["as_json"] else print_line(lora_config(arguments))
        else:
            print_json(result.to_dict()) if options["as_json"] else print_line(str(result))
    finally:  # what took so long to find is not lost if one of these fails
        if (plan := options["plan"]) is not None:
            result.save(plan)
        if page is not None:
            write_page(result.to_dict(), page, "plan-page" if options["adapters"] else "probe-page")


def refuse_unused(options: dict[str, Any], slots: tuple[str, ...], blueprints: tuple[str, ...]) -> None:
    """Raise UsageError for options that a probe of this kind does not have."""
    if options["adapters"] and (slots or blueprints):
        msg = "--adapters names the layers itself: leave out --slots and --blueprints"
        raise click.UsageError(msg)
    of_adapters = [name for name in ("rank", "block", "parameters", "plan", "form") if options[name] is not None]
    if of_adapters and not options["adapters"]:
        msg = f"--{of_adapters[0].replace('form', 'to')} is for adapters: add  --adapters all-linear"
        raise click.UsageError(msg)


def lora_config(arguments: dict[str, Any]) -> str:
    """Return the arguments of PEFT's LoraConfig as Python, one in each line.

    >>> print(lora_config({"r": 2, "target_modules": ["a.b"]}))
    LoraConfig(
        r=2,
        target_modules=['a.b'],
    )
    """
    return "\n".join(["LoraConfig(", *(f"    {name}={value!r}," for name, value in arguments.items()), ")"])


def split_names(argument: str) -> tuple[Path, Sequence[str]]:
    """Return the file, and the names of what it defines.

    >>> split_names("my_model.py:net,per_example,loader,held_out")[1]
    ['net', 'per_example', 'loader', 'held_out']
    """
    file, colon, names = argument.rpartition(":")
    if not colon or Path(file).suffix != ".py":
        return Path(argument), NAMES
    requested = [name.strip() for name in names.split(",")]
    if len(requested) not in (len(NAMES), len(NAMES) + 1) or not all(name.isidentifier() for name in requested):
        hint = f"For example  {file}:{','.join(NAMES)}  and, if it has an optimizer, its name as the fifth."
        raise ConfigError(Problem("E355", f'"{names}" does not name {len(NAMES)} objects', file=file, hint=hint))
    return Path(file), requested


def read_file(file: Path, names: Sequence[str]) -> list[Any]:
    """Import a file and return what it defines under ``names``; the first may be a function that builds the model.

    Raises:
        ConfigError: It cannot be imported, or a name is missing (E355).
    """
    from esper_core.plugins import attempt

    if not file.is_file():
        message = "there is no such file" if not file.exists() else "this is a folder"
        raise ConfigError(Problem("E355", message, file=str(file), hint="Give a Python file that defines a model."))
    with redirect_stdout(sys.stderr):
        module = _imported(file)
        missing = [name for name in names if not hasattr(module, name)]
        if missing:
            defined = [name for name in vars(module) if not name.startswith("_")]
            order = f"Give other names in this order:  {file}:{','.join(NAMES)}"
            problems = [
                Problem(
                    "E355",
                    f'the file defines no "{name}"',
                    file=str(file),
                    hint=f"{suggestion(name, defined)}\n{order}",
                )
                for name in missing
            ]
            raise ConfigError(problems)
        objects = [getattr(module, name) for name in names]
        if callable(objects[0]) and not hasattr(objects[0], "parameters"):
            built = attempt(objects[0])
            if built.error is not None:
                hint = "A function is called without arguments, and has to return the model."
                raise _failed(file, f'"{names[0]}" raised', built.error, hint)
            objects[0] = built.value
    return objects


def _imported(file: Path) -> ModuleType:
    from esper_core.plugins import attempt

    spec = spec_from_file_location(f"_esper_probe_{file.stem}", file)
    if spec is None or spec.loader is None:
        hint = "The name must end with .py."
        raise ConfigError(Problem("E355", "this is not a Python file", file=str(file), hint=hint))
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
        click.get_current_context().call_on_close(lambda: sys.path.remove(folder))
    loader = spec.loader
    tried = attempt(lambda: loader.exec_module(module))
    if tried.error is not None:
        raise _failed(file, "the file cannot be imported: it raised", tried.error, _GUARD)
    return module


_GUARD: Final = 'Training belongs below  if __name__ == "__main__":  so that importing the file does not start it.'


def _failed(file: Path, description: str, error: BaseException, hint: str) -> EsperError:
    """Return the error of a file that raised, with the line."""
    from esper_core.plugins import location_of

    place, line = location_of(error)
    message = f"{description} {one_line(format_exception_only(error)[-1])}"
    failure = ConfigError(Problem("E355", message, file=place or str(file), line=line, hint=hint))
    failure.__cause__ = error
    return failure


def refuse_files(page: Path | None, plan: Path | None) -> None:
    """Raise ConfigError (E356) if the page or the plan could not be written after the probe."""
    if page is not None and not entry_points(group="esper.notebook", name="probe-page"):
        message = "no installed package makes pages"
        raise ConfigError(Problem("E356", message, hint="It comes with another package:  pip install esper-watch"))
    for file in (page, plan):
        if file is not None and not file.parent.is_dir():
            message = f"cannot write {file}: there is no folder {file.parent}"
            raise ConfigError(Problem("E356", message, hint="Give a file in a folder that exists."))
        if (
            file is not None
            and (file.exists() or file.is_symlink())
            and not (file.is_file() and os.access(file, os.W_OK))
        ):
            message = f"cannot write {file}: it is no file, or may not be written"
            raise ConfigError(Problem("E356", message, hint="Give a file that can be written to."))


def write_page(result: dict[str, Any], page: Path, kind: str) -> None:
    """Write the page of a probe or a plan; ConfigError (E356) if that fails."""
    from esper_grow.probes.results import html_of

    try:
        page.write_text(html_of(kind, result) or "", encoding="utf-8")
    except OSError as error:
        message = f"cannot write {page}: {error.strerror or error}"
        raise ConfigError(Problem("E356", message, hint="Give a file that can be written to.")) from error
    print_line(f"Written: {printable(str(page))}", stream=sys.stderr)
