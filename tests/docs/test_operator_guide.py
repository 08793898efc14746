"""The operator guide's tables of flags, annotations and variables equal those of programs and manifests."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from certs import material
from corepin.flags import variable
from corepin.run import agent, certs_run, dashboard, guard, webhook
from tests.docs.blocks import chapter

PAGE = Path("docs/operator-guide.md").read_text(encoding="utf-8")


def rows(title: str) -> dict[str, str]:
    """Return the first two columns of a chapter's tables, without code marks."""
    found = re.findall(r"^\| `(.+?)` \|(.*?)\|", chapter(PAGE, title), re.MULTILINE)
    return {name: default.strip(" `") for name, default in found}


def test_flags_of_the_rotation() -> None:
    """The guide lists each flag of `corepin certs run` with its default, and no other."""
    root = argparse.ArgumentParser()
    parser = certs_run.add_parser(root.add_subparsers())
    flags = {
        action.option_strings[0]: action for action in parser._actions if action.option_strings[0] != "-h"
    }
    described = {name: default for name, default in rows("Certificates").items() if name.startswith("--")}
    assert described.keys() == flags.keys()
    lists = {"--replicas": certs_run.REPLICAS, "--webhook-configurations": ",".join(certs_run.CONFIGURATIONS)}
    for name, default in described.items():
        assert default == lists.get(name, flags[name].default or "")


@pytest.mark.parametrize(
    ("title", "program"),
    [("webhook", webhook), ("agent", agent), ("guard", guard), ("dashboard", dashboard)],
)
def test_flags_of_the_programs(title: str, program: ModuleType) -> None:
    """The guide lists each flag of a program with its default; for the agent the table of variables counts too."""
    described = flags_in(chapter(PAGE, "Flags of the programs").partition(f"### Of the {title}\n")[2])
    parser = program.add_parser(argparse.ArgumentParser().add_subparsers())
    flags = {it.option_strings[0]: it.default for it in parser._actions if it.option_strings[0] != "-h"}
    if program is agent:
        variables = rows("Variables of the agents")
        flags = {name: default for name, default in flags.items() if variable(name) not in variables}
    if program is guard:
        flags["--exempt"] = guard.EXEMPT
    assert described == {name: default or "" for name, default in flags.items()}


def flags_in(text: str) -> dict[str, str]:
    """Return the flags of the first table of a text with their defaults."""
    table = text.partition("\n### ")[0]
    found = re.findall(r"^\| `(--[a-z-]+)` \|(.*?)\|", table, re.MULTILINE)
    return {name: default.strip(" `") for name, default in found}


def test_annotations_of_the_secret() -> None:
    """The guide lists every annotation of the Secret that the rotation reads or writes."""
    names = {material.ROTATE, material.MANAGED, material.PUBLISHED, material.SHOWN}
    assert set(re.findall(r"`(certs\.corepin\.io/\w+)`", chapter(PAGE, "Certificates"))) == names


def test_variables_of_the_agents() -> None:
    """The guide lists every DaemonSet variable, except paths and pod fields, with its shipped or default value."""
    text = Path("manifests/base/agent.yaml").read_text(encoding="utf-8")
    env = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["env"]
    shipped = {
        variable["name"]: variable.get("value", "none") for variable in env if "valueFrom" not in variable
    }
    parser = agent.add_parser(argparse.ArgumentParser().add_subparsers())
    defaults = {variable(action.option_strings[0]): action.default for action in parser._actions}
    described = rows("Variables of the agents")
    assert described == {name: shipped.get(name, defaults.get(name)) for name in described}
    missing = {value for name, value in shipped.items() if name not in described}
    assert all(value.startswith("/") for value in missing)
