"""Generate the templates and value files of the Helm chart from kustomize's rendering of manifests/.

Every overlay is rendered. Fields that values decide become expressions; an overlay's own content goes to its
value file. Parts of only some overlays are put into an `if`. Any other difference between overlays is an error
until chart_values.py declares it. Chart.yaml, values.yaml with its schema, and two templates are hand-written.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from scripts.chart_values import BASE, FIELDS, OVERLAYS, SWITCHES, WHEN, Field
from tests.environments.server.build import build_missing, cache_folder, find
from tests.environments.server.catalog import KUBECTL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MANIFESTS = Path("manifests")
CHART = MANIFESTS / "helm"
# No overlay has groups of nodes, so no rendered object has their keys.
AGENT_CONFIG = "  config.yaml: {{ .Values.agent.config | toJson }}\n"
AGENT_GROUPS = """\
{{- range $name, $config := .Values.agent.groups }}
  {{ printf "config.%s.yaml" $name | toJson }}: {{ $config | toJson }}
{{- end }}
"""
# In objects, expressions are between marks that no manifest contains, such as ⟪.Values.x⟫. Kustomize puts these two
# wherever a namespace is named.
NAMES = "data: {system: ⟪.Values.namespaces.system⟫, agent: ⟪.Values.namespaces.agent⟫}\n"
TEMPLATE_HEADER = "{{- /* Written by `make chart` from manifests/, where the reasons stand. */}}\n"
VALUES_HEADER = "# What the overlay {0} changes. Written by `make chart` from manifests/{0}.\n"

Object = dict[str, Any]
Identity = tuple[str, str, str]  # kind, namespace, name


class ChartIncomplete(Exception):
    """The overlays differ in a field that no value of the chart decides."""


def chart_files() -> dict[Path, str]:
    """Return every generated file of the chart, by its path below the chart."""
    overlays = _rendered()
    files = {Path("values", f"{name}.yaml"): _value_file(name, overlays) for name in OVERLAYS - {BASE}}
    for objects in overlays.values():
        _mark_fields(objects)
    return files | _templates(overlays)


def write(files: dict[Path, str]) -> None:
    """Replace the generated files."""
    for path in written() - files.keys():
        (CHART / path).unlink()
    for path, text in files.items():
        (CHART / path).parent.mkdir(exist_ok=True)
        (CHART / path).write_text(text, encoding="utf-8")


def written() -> set[Path]:
    """Return the existing generated files, recognized by a mark in their first lines."""
    return {
        path.relative_to(CHART)
        for path in CHART.glob("*/*.yaml")
        if "Written by `make chart`" in path.read_text(encoding="utf-8").partition("\n")[0]
    }


def _rendered() -> dict[str, dict[Identity, Object]]:
    """Return the objects of every overlay, with expressions where the namespaces are named."""
    build_missing(sys.stderr, [KUBECTL])  # the pinned one, because another version may render differently
    kubectl = find(KUBECTL, cache_folder())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(MANIFESTS, Path(folder, "manifests")))
        names = copy / "base/names.yaml"
        names.write_text(names.read_text().partition("\ndata:")[0] + "\n" + NAMES, encoding="utf-8")
        overlays = {}
        for name in sorted(OVERLAYS):
            command = [str(kubectl), "kustomize", str(copy / name)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)  # noqa: S603 - ours
            overlays[name] = {_identity(it): it for it in yaml.safe_load_all(done.stdout)}
    return overlays


def _identity(it: Object) -> Identity:
    return it["kind"], it["metadata"].get("namespace", ""), it["metadata"]["name"]


def _places(objects: dict[Identity, Object], field: Field) -> list[tuple[Any, str]]:
    """Return the parents of a field, with the field's key there; none if an overlay has no such object."""
    *steps, key = (step.replace("~1", "/") for step in field.path.split("/"))
    named = (field.kind, field.name)
    return [
        (reduce(_step, steps, it), key) for (kind, _, name), it in objects.items() if (kind, name) == named
    ]


def _step(it: Any, step: str) -> Any:
    if isinstance(it, dict):
        return it[step]
    return it[int(step)] if step.isdigit() else next(item for item in it if item["name"] == step)


def _values(objects: dict[Identity, Object]) -> dict[str, Any]:
    """Return the values with which the chart renders these objects."""
    return {
        field.value: holder.get(key)
        for field in FIELDS
        if field.value
        for holder, key in _places(objects, field)
    }


def _value_file(name: str, overlays: dict[str, dict[Identity, Object]]) -> str:
    """Return an overlay's condition value, and its values that differ from the base's."""
    base = _values(overlays[BASE])
    changed = {key: value for key, value in _values(overlays[name]).items() if value != base.get(key, value)}
    tree: dict[str, Any] = {}
    for key, value in (SWITCHES.get(name, {}) | changed).items():
        *groups, last = key.split(".")
        reduce(lambda at, group: at.setdefault(group, {}), groups, tree)[last] = value
    return VALUES_HEADER.format(name) + _yaml(tree)


def _mark_fields(objects: dict[Identity, Object]) -> None:
    """Replace values by template expressions."""
    for field in FIELDS:
        for holder, key in _places(objects, field):
            if not (field.is_optional or key in holder):
                raise ChartIncomplete(f"{field.kind} {field.name} has no {field.path}")
            holder[key] = f"⟪with {field.template}⟫" if field.is_optional else f"⟪{field.template}⟫"


def _templates(overlays: dict[str, dict[Identity, Object]]) -> dict[Path, str]:
    """Return the templates: a file for each part and kind, a document in it for each object."""
    documents: dict[Path, list[str]] = defaultdict(list)
    for identity in dict.fromkeys(identity for objects in overlays.values() for identity in objects):
        having = {name: objects[identity] for name, objects in overlays.items() if identity in objects}
        text = _template(combined(having, " ".join(identity)))
        if len(having) < len(overlays):
            text = f"{{{{- if {_condition(having, overlays)} }}}}\n{text}{{{{- end }}}}\n"
        documents[_file_of(next(iter(having.values())))].append(text)
    return {path: TEMPLATE_HEADER + "---\n".join(texts) for path, texts in documents.items()}


def _file_of(it: Object) -> Path:
    """Return the file of an object, e.g. templates/agent-daemonset.yaml."""
    labels = it["metadata"]["labels"]
    part = labels.get("app.kubernetes.io/component", labels["app.kubernetes.io/name"])
    return Path("templates", f"{part}-{it['kind']}.yaml".lower())


def combined(variants: Mapping[str, Any], where: str) -> Any:
    """Return the merged variants of overlays: common parts, and parts of only some overlays in an `if`."""
    first, *others = variants.values()
    if all(other == first for other in others):
        return first
    if all(isinstance(variant, dict) for variant in variants.values()):
        return _combined_keys(variants, where)
    if all(isinstance(variant, list) and len(variant) == len(first) for variant in variants.values()):
        return [
            combined({name: variant[i] for name, variant in variants.items()}, f"{where} {i}")
            for i in range(len(first))
        ]
    if all(isinstance(variant, list) and _are_named(variant) for variant in variants.values()):
        return list(_combined_items(variants, where))
    raise ChartIncomplete(f"{where}: the overlays differ, and no value of the chart decides it")


def _combined_keys(variants: Mapping[str, Object], where: str) -> Object:
    together: Object = {}
    for key in dict.fromkeys(key for variant in variants.values() for key in variant):
        having = {name: variant[key] for name, variant in variants.items() if key in variant}
        node = combined(having, f"{where} {key}")
        if len(having) < len(variants):
            together |= {f"⟪if {_condition(having, variants)}⟫": None, key: node, f"⟪end {key}⟫": None}
        else:
            together[key] = node
    return together


def _are_named(items: list[Any]) -> bool:
    return all(isinstance(item, dict) and "name" in item for item in items)


def _combined_items(variants: Mapping[str, list[Object]], where: str) -> Iterator[Any]:
    """Yield each item of all lists once, merged by name; raise ChartIncomplete if two lists differ in order."""
    by_name = {name: {item["name"]: item for item in items} for name, items in variants.items()}
    order = _merged_order(by_name.values())
    if any(list(items) != [item for item in order if item in items] for items in by_name.values()):
        raise ChartIncomplete(f"{where}: the overlays have their items in another order")
    for item in order:
        having = {name: items[item] for name, items in by_name.items() if item in items}
        node = combined(having, f"{where} {item}")
        is_everywhere = len(having) == len(variants)
        yield from (node,) if is_everywhere else (f"⟪if {_condition(having, variants)}⟫", node, "⟪end⟫")


def _merged_order(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of all lists in a merged order; a new name follows its predecessor."""
    order: list[str] = []
    for names in lists:
        at = 0
        for name in names:
            if name in order:
                at = order.index(name) + 1
            else:
                order.insert(at, name)
                at += 1
    return order


def _condition(having: Mapping[str, Any], variants: Mapping[str, Any]) -> str:
    """Return the condition of WHEN that is true for exactly the overlays in `having`."""
    for overlays, condition in WHEN.items():
        if overlays & variants.keys() == having.keys():
            return condition
    raise ChartIncomplete(f"no value of the chart decides what only these overlays have: {', '.join(having)}")


def _template(it: Object) -> str:
    """Return an object as text for Helm; values are written as JSON, because JSON is valid YAML everywhere."""
    text = _yaml(it).replace("{{", '{{ "{{" }}')  # escapes our own braces, e.g. in alerts
    text = re.sub(r"(?m)^ *(?:- )?⟪(if .*?|end)(?: \w+)?⟫(?:: null)?$", r"{{- \1 }}", text)
    text = re.sub(r"(?m)^(.*)⟪with (.*)⟫$", r"{{- with \2 }}\n\1{{ . | toJson }}\n{{- end }}", text)
    text = re.sub(r"(?m)(?<=[:-] )⟪(.*)⟫$", r"{{ \1 | toJson }}", text)
    text = re.sub(r"⟪(.*?)⟫", r"{{ \1 }}", text)
    return text.replace(AGENT_CONFIG, AGENT_CONFIG + AGENT_GROUPS)


class _Dumper(yaml.SafeDumper):
    """Writes texts with several lines as blocks."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(it: Object) -> str:
    return yaml.dump(it, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)


if __name__ == "__main__":
    write(chart_files())
