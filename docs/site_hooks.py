"""Hooks of mkdocs: pages that are generated from the code, and research/ beside the guides.

A page holds `<!-- generated: NAME -->` where the text of `GENERATED[NAME]` goes. Files of research/
join the site as research/..., and links that leave docs/ are mended: to research/ they stay inside
the site, to other files of the repository they become plain text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parents[1]
RESEARCH = ("*.md", "*.csv", "*.svg", "*.png", "*.yaml")
MARKER = re.compile(r"<!-- generated: (\w+) -->")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+)([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add research/."""
    for path in sorted(p for kind in RESEARCH for p in (ROOT / "research").rglob(kind)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert what is generated; mend links."""
    depth = page.file.src_uri.count("/")
    text = MARKER.sub(lambda found: GENERATED[found[1]](), markdown)
    return LINK.sub(lambda found: _link(found, depth, page.file.src_uri), text)


def _link(found: re.Match[str], depth: int, page: str) -> str:
    image, text, ups, target, anchor = found.groups()
    levels = ups.count("/")
    outside = levels > depth  # of docs/, or of the site for a page of research/
    if page.startswith("research/"):
        if target.startswith("docs/"):
            return f"{image}[{text}]({ups}{target.removeprefix('docs/')}{anchor or ''})"
        outside = levels >= depth
    if not outside:
        return found[0]
    if target.startswith("research/"):
        return f"{image}[{text}]({'../' * depth}{target}{anchor or ''})"
    return f"{text} (`{target}`)" if text != target else f"`{target}`"


def commands() -> str:
    """Every command with its arguments and options."""
    from recsys_moe.cli import app

    return "\n".join(_command(typer.main.get_command(app), "recsys-moe"))


def _command(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children:
        for child, found in children.items():
            yield from _command(found, f"{name} {child}")
        return
    yield f"## `{name}`\n\n{command.help or ''}\n"
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if shown:
        yield "| option | meaning | default |\n|---|---|---|"
        yield from (_option(one) for one in shown)
        yield ""


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    shown = "required" if parameter.required else "" if default in (None, False) else f"`{default}`"
    meaning = " ".join((getattr(parameter, "help", None) or "").split())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (names, meaning, shown)) + " |"


def settings() -> str:
    """Every setting with its default and documentation; routers have a page of their own."""
    from recsys_moe.config.settings import Config

    return "\n".join(_section(Config, ""))


def _section(model: type[BaseModel], prefix: str, leave_out: Collection[str] = ()) -> Iterator[str]:
    rows = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if name in leave_out:
            continue
        if name == "tasks":
            yield from _tasks()
        elif f"{prefix}{name}" == "model":
            yield from _models()
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and name != "router":
            yield f"## `{prefix}{name}`\n"
            yield from _section(kind, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", field))
    if rows:
        yield "| setting | default | meaning |\n|---|---|---|"
        yield from (_setting(name, field) for name, field in rows)
        yield ""


def _models() -> Iterator[str]:
    """What all models have, and what each has besides."""
    from recsys_moe.model.registry import MODELS
    from recsys_moe.model.settings import ModelConfig

    yield "## `model`\n"
    yield from _section(ModelConfig, "model.")
    for name, one in MODELS.items():
        yield f"## `model` with `model.name={name}`\n"
        yield from _section(one.Config, "model.", ModelConfig.model_fields)


def _tasks() -> Iterator[str]:
    from recsys_moe.config.sections import TaskConfig, TasksConfig
    from recsys_moe.model.weighting import CONFIGS

    yield "## `tasks.TASK`\n"
    yield from _section(TaskConfig, "tasks.TASK.")
    yield "## `tasks.weighting`\n"
    meaning = " ".join((TasksConfig.model_fields["weighting"].description or "").split())
    yield f"{meaning} One of {', '.join(CONFIGS)}; default `fixed`.\n"
    for method, config in CONFIGS.items():
        own = {key: field for key, field in config.model_fields.items() if key != "name"}
        if own:
            yield f"With `{method}`:\n\n| setting | default | meaning |\n|---|---|---|"
            yield from (_setting(f"tasks.weighting.{key}", field) for key, field in own.items())
            yield ""


def _setting(name: str, field: Any) -> str:
    default = field.get_default(call_default_factory=True)
    shown = "" if default is PydanticUndefined or isinstance(default, BaseModel) else f"`{default}`"
    meaning = " ".join((field.description or "").split())
    return f"| `{name}` | {shown} | {meaning} |".replace("\\|", "|")


GENERATED = {"commands": commands, "settings": settings}
