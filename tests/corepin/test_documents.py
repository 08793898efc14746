"""Unreadable files: an error with file and line, exit code 2, and no output."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from corepin.cli import main
from kubeyaml.reader import DEPTH_LIMIT, SIZE_LIMIT, read_yaml
from tests.corepin.documents import POD, written

if TYPE_CHECKING:
    from pathlib import Path


def failure(capsys: pytest.CaptureFixture[str], verb: str, source: str) -> str:
    """Run a verb that must fail, and return its one line."""
    assert main([verb, "-f", source]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


NONE = ": holds no document: write an object with apiVersion and kind"
NO_OBJECT = ":{}: expected a Kubernetes object, found {}: write a mapping with apiVersion and kind"
TEMPLATE = ":{0}: this is a template (line {0} has a mark such as {{{{ }}}}): render it first, for example with `helm template`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", NONE),
        ("---\n# nothing\n---\n", NONE),
        (f"{POD}---\n- a\n", NO_OBJECT.format(13, "a list")),
        (f"{POD}---\nword\n", NO_OBJECT.format(13, "a text")),
        ("42\n", NO_OBJECT.format(1, "a number")),
        ('{"a": 1,\n"a": 2}', ":2: key 'a' appears twice (first on line 1): remove one"),
        ("a: 1\na: 2\n", ":2: key 'a' appears twice (first on line 1): remove one"),
        ("kind: Pod\n", ":1: apiVersion is missing: add it, for example apiVersion: v1"),
        ("\n\napiVersion: v1\n", ":3: kind is missing: add it, for example kind: Pod"),
        ("apiVersion: v1\nkind: [Pod]\n", ":1: kind is a list, expected a text: write for example kind: Pod"),
        (
            "apiVersion: 1\nkind: Pod\n",
            ":1: apiVersion is the number 1, expected a text: write for example apiVersion: v1",
        ),
        ("apiVersion: v1\nkind: yes\n", ":1: kind is true, expected a text: write for example kind: Pod"),
        ('apiVersion: ""\nkind: Pod\n', ":1: apiVersion is empty: write for example apiVersion: v1"),
        (
            "apiVersion: v1\nkind: PodList\nitems: [{apiVersion: 0}]\n",
            ":1: items[0].apiVersion is the number 0, expected a text: write for example apiVersion: v1",
        ),
        ("yes\n", NO_OBJECT.format(1, "true or false")),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Values.name }}\n", TEMPLATE.format(4)),
        ("{{- if .Values.on }}\nkind: Pod\n{{- end }}\n", TEMPLATE.format(1)),
        ("{% if on %}\nkind: Pod\n{% endif %}\n", TEMPLATE.format(1)),
        (
            "a: b: c\nd: '{{ .Values.x }}'\n",
            ":1: mapping values are not allowed in this context: fix the YAML here or just above",
        ),
        (
            '{"apiVersion": "v1"}\n{"a": 1,\n"a": 2}',
            ":3: key 'a' appears twice (first on line 2): remove one",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [1]\n",
            ":1: items[0] is a number, not an object: write an object, or remove the entry",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [{}]\n",
            ":1: items[0].apiVersion is missing: add it, for example apiVersion: v1",
        ),
        (
            '{"apiVersion": "v1",\n "kind" "Pod"}',
            ":2: did not find expected ',' or '}': fix the YAML here or just above",
        ),
    ],
    ids=lambda value: repr(value)[-30:],
)
@pytest.mark.parametrize("verb", ["inject", "validate"])
def test_unreadable_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, text: str, message: str
) -> None:
    """Both commands report file, line and error in the same words."""
    source = written(tmp_path, text)

    assert failure(capsys, verb, source) == f"corepin {verb}: {source}{message}"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            POD.replace("spec:", "spec: 1\nx:"),
            "spec: expected a mapping, found a number: write its keys below it",
        ),
        (
            POD.replace("  name: fast", "  annotations: {b: x, cmk.intel.com/mutate: true}"),
            "metadata.annotations[cmk.intel.com/mutate]: expected a text, found true or false: put the value in quotes",
        ),
    ],
    ids=["spec", "annotation"],
)
@pytest.mark.parametrize("verb", ["inject", "validate"])
def test_object_of_the_wrong_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, document: str, message: str
) -> None:
    """An object of the wrong shape is refused with object and field, or the annotation's key."""
    source = written(tmp_path, POD, document)

    assert failure(capsys, verb, source).startswith(f"corepin {verb}: {source}:13: Pod team/")
    assert main([verb, "-f", source]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "{containers: [{name: a, resources: {limits: {cpu: [1]}}}]}",
            "limits[cpu]: expected an amount, found a list: write for",
        ),
        (
            "{containers: [{name: [a]}]}",
            "spec.containers[0].name: expected a text, found a list: write one text",
        ),
        (
            "{containers: {name: a}}",
            "spec.containers: expected a list, found a mapping: begin each entry with a dash",
        ),
    ],
    ids=["amount", "name", "containers"],
)
@pytest.mark.parametrize("verb", ["inject", "validate"])
def test_expected_shapes_are_named_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, spec: str, message: str
) -> None:
    """A field of the wrong shape is refused with the expected one in words."""
    source = written(tmp_path, f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n")

    assert message in failure(capsys, verb, source)


def test_template_path_starts_at_the_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path of a mistake in a CronJob's template starts at the CronJob."""
    template = "{spec: {containers: 3}}"
    source = written(
        tmp_path,
        f"apiVersion: batch/v1\nkind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {template}}}}}}}\n",
    )

    for verb in ("inject", "validate"):
        assert "CronJob (no name): spec.jobTemplate.spec.template.spec.containers: " in failure(
            capsys, verb, source
        )


@pytest.mark.parametrize("number", ["1" + "0" * 30, "-" + "9" * 40])
def test_json_numbers_beyond_64_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str) -> None:
    """JSON numbers beyond 64 bits cause no traceback."""
    source = written(tmp_path, POD.replace("name: app", f"name: app\n    x: {number}"))

    assert main(["validate", "-f", source]) == 0
    assert "valid" in capsys.readouterr().out


def test_json_that_yaml_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A surrogate pair is valid JSON; a lone surrogate is refused with its line."""
    pod = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "%s"}}, "y": %s}'

    assert main(["inject", "-f", written(tmp_path, pod % ("\\ud83d\\ude00", "1" + "0" * 30))]) == 0
    assert "\\U0001F600" in capsys.readouterr().out
    for half in ("\\ud83d", "\\ude00", "\\ude00\\ud83d"):
        message = failure(capsys, "inject", written(tmp_path, pod % ("ok", "1") + "\n" + pod % (half, "1")))
        assert message.endswith(
            ":2: a \\u escape is half of a surrogate pair: write both halves, or the character itself"
        )


POD_JSON = '{"apiVersion": "v1",\n"kind": "Pod", "metadata": {"name": "%s"}, "spec": {"containers": [{"name": "c"}]}}'


@pytest.mark.parametrize("between", ["", "\n", " \r\n\t"])
@pytest.mark.parametrize("verb", ["inject", "validate"])
def test_json_objects_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, between: str
) -> None:
    """A stream as `kubectl get -o json` and `jq` write it is as many documents, each with its line."""
    listed = '{"apiVersion": "v1", "kind": "List", "items": [%s]}' % (POD_JSON % "\\ud83d\\ude00")
    source = written(tmp_path, between.join((POD_JSON % "one", POD_JSON % "two", listed)) + between)

    assert main([verb, "-f", source]) == 0
    out = capsys.readouterr().out
    if verb == "inject":
        assert [document["kind"] for _, document in read_yaml(out)] == ["Pod", "Pod", "List"]
    else:
        step = 1 + between.count("\n")
        lines = [line.removeprefix(source) for line in out.splitlines()]
        assert lines[:2] == [":1: Pod one: valid", f":{1 + step}: Pod two: valid"]
        assert lines[2].startswith(f":{1 + 2 * step}: Pod ")


def test_much_json_costs_no_more_than_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of ten thousand objects is read in linear time."""
    source = written(tmp_path, '{"apiVersion": "v1", "kind": "X"}\n' * 10_000)

    assert main(["validate", "-f", source]) == 0
    assert capsys.readouterr().out.count("valid") == 10_000


def test_deepest_object_is_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The deepest accepted object is injected without an error."""
    deep = "[" * (DEPTH_LIMIT - 1) + "]" * (DEPTH_LIMIT - 1)

    assert main(["inject", "-f", written(tmp_path, f"{POD}x: {deep}\n")]) == 0
    assert main(["validate", "-f", written(tmp_path, f"{POD}x: {deep}\n")]) == 0
    assert "valid" in capsys.readouterr().out


@pytest.mark.parametrize("escape", ["", "\\ud83d\\ude00"])
@pytest.mark.parametrize("verb", ["inject", "validate"])
@pytest.mark.parametrize("depth", [500, 5000])
def test_deep_json_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], escape: str, verb: str, depth: int
) -> None:
    """JSON nested deeper than any object is refused before anything walks it, with escapes or without."""
    limits = '"limits": {"cmk.intel.com/exclusive-cores": 1}'
    pod = '{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "resources": {%s}}]}, "x": "%s", "y": %s}'

    source = written(tmp_path, pod % (limits, escape, "[" * depth + "]" * depth))

    assert failure(capsys, verb, source).startswith(f"corepin {verb}: {source}:1: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: \xff\n", ":2: is not UTF-8 text: save it as UTF-8"),
        (b"\xff\xfea\x00", ":1: is not UTF-8 text: save it as UTF-8"),
    ],
    ids=["latin-1", "utf-16"],
)
def test_other_encodings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    """Bytes that are not UTF-8 are refused with their line."""
    path = tmp_path / "f.yaml"
    path.write_bytes(content)

    assert failure(capsys, "validate", str(path)) == f"corepin validate: {path}{message}"


def test_byte_order_mark_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A byte order mark at the beginning of a file is skipped."""
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + POD.encode())

    assert main(["inject", "-f", str(path)]) == 0
    assert capsys.readouterr().out.startswith("apiVersion: v1\n")


def test_places_that_are_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory, a missing file and an endless one are refused, each with a remedy."""
    assert failure(capsys, "inject", str(tmp_path)).endswith(f"{tmp_path}: is a directory: name a file in it")
    assert failure(capsys, "inject", str(tmp_path / "x")).endswith(
        "check the path, or write - for standard input"
    )
    assert failure(capsys, "inject", "a\0b").endswith("embedded null byte: name a file that can be read")
    assert failure(capsys, "inject", "/dev/zero").endswith(f"is larger than {SIZE_LIMIT >> 20} MB: split it")


def test_standard_input_is_named_in_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-` reads standard input, and a mistake in it names it."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1\na: 2\n")))

    assert failure(capsys, "validate", "-").startswith("corepin validate: standard input:2: key 'a'")


@pytest.mark.parametrize("verb", ["inject", "validate"])
def test_closed_pipe_is_one_line(tmp_path: Path, verb: str) -> None:
    """A reader that closes the pipe (`| head`) gets exit code 2 and one line, never a traceback."""
    source = written(tmp_path, *[POD] * 2)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            _command(verb, source),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        f"corepin {verb}: standard output was closed before everything was written"
    )
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def _command(verb: str, source: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "import sys; from corepin.cli import main; sys.exit(main())",
        verb,
        "-f",
        source,
    ]


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    """An output that cannot be written is one line."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123 a device
        ended = subprocess.run(
            _command("validate", written(tmp_path, POD)),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ended.returncode == 2
    assert ended.stderr == "corepin validate: standard output: No space left on device\n"


@pytest.mark.parametrize("verb", ["inject", "validate"])
def test_closed_output_is_one_line(tmp_path: Path, verb: str) -> None:
    """A shell that closed the output (`>&-`) or the input (`<&-`) gets one line, never a traceback."""
    script = f"exec {shlex.join(_command(verb, written(tmp_path, POD)))} >&-"
    no_output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    script = f"exec {shlex.join(_command(verb, '-'))} <&-"
    no_input = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)

    last = no_output.stderr.splitlines()[-1]  # the error follows the warnings of inject
    assert (no_output.returncode, last) == (2, f"corepin {verb}: standard output is closed")
    assert (no_input.returncode, no_input.stderr) == (
        2,
        f"corepin {verb}: standard input is closed: name a file\n",
    )


@pytest.mark.parametrize("verb", ["inject", "validate"])
def test_output_is_utf_8_under_any_locale(tmp_path: Path, verb: str) -> None:
    """Output is UTF-8, whatever the locale."""
    ended = subprocess.run(
        _command(verb, written(tmp_path, POD.replace("name: fast", "name: ünï-fast"))),
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )

    assert ended.returncode == 0
    assert "ünï-" in ended.stdout.decode()


def test_names_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a file are escaped in the output."""
    source = written(tmp_path, POD.replace("name: fast", 'name: "a\\e[31m\\n"'))

    assert main(["validate", "-f", source]) == 0
    assert "Pod team/a\\x1b[31m\\n: valid" in capsys.readouterr().out


def test_closed_standard_error_leaves_the_output_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With stderr closed no warning is written into the YAML of `inject 2>&- | kubectl apply -f -`."""
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["inject", "-f", str(tmp_path / "nowhere.yaml")]) == 2
    assert capsys.readouterr().out == ""
