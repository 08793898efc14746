"""The cache of built servers, with a fake Go tool chain."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import SkipTest

import pytest

from tests.environments.server.__main__ import list_servers
from tests.environments.server.build import BuildFailed, GoMissing, build_missing, cache_folder, find, find_go
from tests.environments.server.catalog import (
    ETCD,
    KUBE_APISERVER,
    NEWEST,
    OLDEST,
    SERVERS,
    Module,
    OwnModule,
    Server,
)
from tests.environments.server.start import ServersMissing, SkippedServersMissing, require_servers

GO = """#!/bin/sh
[ "$1" = env ] && echo go{version} && exit
echo built >>"$0.log"
for argument; do case "$argument" in -o=*) printf %s {binary} >"${{argument#-o=}}";; esac; done
{ending}
"""


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """Return a server whose module is a temporary folder."""
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text("module m\n\ngo 1.26.0\n\nrequire example.org/it v1.2.3\n")
    (folder / "go.sum").write_text("sums\n")
    return Server("it", Module(folder, "example.org/it"))


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the first folder on PATH, besides the system's folders; use a temporary build cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("COREPIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("CI", raising=False)
    return folder


def install_go(folder: Path, *, version: str = "1.26.8", binary: str = "whole", ending: str = "") -> Path:
    """Write a fake `go` that writes `binary` as the built program and then runs the shell command `ending`."""
    go = folder / "go"
    go.write_text(GO.format(version=version, binary=binary, ending=ending))
    go.chmod(0o755)
    return go


def test_catalog_versions_come_from_go_mod() -> None:
    """The versions in go.mod are those of the catalog."""
    assert [server.label for server in SERVERS] == [
        "etcd 3.7.3",
        "kube-apiserver 1.37.1",
        "kubectl 1.37.1",
        "kube-apiserver 1.30.14",
        "policy 1.37.1",
        "helm 4.3.1",
        "krew 0.4.4",
        "topology-aware-scheduler 0.34.7",
        "nri-runtime 0.12.3",
        "nri-runtime 0.11.0",
        "nri-runtime 0.8.0",
        "containerd 2.4.2",
        "containerd-shim-runc-v2 2.4.2",
        "ctr 2.4.2",
        "crio 1.34.0",
        "copyimg 1.34.0",
        "pinns 1.34.0",
        "kubelet 1.37.1",
        "kube-scheduler 1.37.1",
        "kube-controller-manager 1.37.1",
    ]
    stamp = KUBE_APISERVER[OLDEST].module.build_flags[-1]
    assert "-X k8s.io/component-base/version.gitVersion=v1.30.14" in stamp


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_cache_key_follows_the_pins(server: Server, file: str) -> None:
    """The digest changes with go.mod, go.sum and build tags; equal inputs have equal digests."""
    module = server.module
    assert replace(module).digest == module.digest
    (module.folder / file).write_text((module.folder / file).read_text() + "// changed\n")
    assert replace(module).digest != module.digest
    assert replace(module, tags=("other",)).digest != replace(module).digest


def test_one_folder_is_built_with_several_pins(server: Server, bin_folder: Path) -> None:
    """A module with two go.mod files has two versions and two builds; a change of its source changes the digest."""
    folder = server.module.folder
    (folder / "old.mod").write_text((folder / "go.mod").read_text().replace("1.2.3", "1.0.0"))
    (folder / "old.sum").write_text("old sums\n")
    (folder / "main.go").write_text("package main\n")
    new = Server("it", OwnModule(folder, "example.org/it"))
    old = replace(new, module=replace(new.module, file="old.mod"))
    install_go(bin_folder)
    build_missing(io.StringIO(), [new, old])
    assert {find(new, cache_folder()), find(old, cache_folder())} == {
        cache_folder() / f"it-1.2.3-{new.module.digest}" / "it",
        cache_folder() / f"it-1.0.0-{old.module.digest}" / "it",
    }
    assert "-modfile=old.mod" in old.module.build_flags
    assert (new.package, server.package) == (".", "example.org/it")
    (folder / "main.go").write_text("package main // changed\n")
    assert replace(new.module).digest != new.module.digest


@pytest.mark.parametrize("ending", ["exit 1", "kill -KILL $$"])
def test_half_build_is_never_used(server: Server, bin_folder: Path, ending: str) -> None:
    """Files of a failed or killed `go build` are not used, and do not disturb the next build."""
    install_go(bin_folder, binary="half", ending=f"echo broken; {ending}")
    with pytest.raises(BuildFailed, match=r"building it 1\.2\.3 failed .*\nbroken"):
        build_missing(io.StringIO(), [server])
    assert find(server, cache_folder()) is None

    left_by_a_kill = cache_folder() / ".partial-1"
    left_by_a_kill.mkdir()
    install_go(bin_folder)
    out = io.StringIO()
    build_missing(out, [server])
    path = find(server, cache_folder())
    assert path is not None
    assert path.read_text() == "whole"
    assert not left_by_a_kill.exists()
    assert out.getvalue().splitlines()[-1].split() == ["it", "1.2.3", "0", "min", "0", "s", "0", "MB"]


def test_two_builds_at_once_build_once(server: Server, bin_folder: Path) -> None:
    """The second build waits for the first, and then finds its result."""
    waits = bin_folder / "waits"
    go = install_go(bin_folder, ending=f"until [ -e {waits} ]; do sleep 0.05; done")

    class Out(io.StringIO):
        """Output that lets the first build finish once the second one waits for it."""

        def write(self, text: str) -> int:
            """Write the text, and release the first build if it announces a wait."""
            if "waiting for another build" in text:
                waits.touch()
            return super().write(text)

    with ThreadPoolExecutor() as pool:
        outs = [Out(), Out()]
        list(pool.map(lambda out: build_missing(out, [server]), outs))
    assert go.with_name("go.log").read_text().splitlines() == ["built"]
    assert sum("waiting for another build" in out.getvalue() for out in outs) == 1


def test_what_is_there_is_skipped_quietly(server: Server, bin_folder: Path) -> None:
    """A second run prints nothing and needs no Go."""
    go = install_go(bin_folder)
    build_missing(io.StringIO(), [server])
    go.unlink()
    out = io.StringIO()
    build_missing(out, [server])
    assert out.getvalue() == ""


def test_old_or_missing_go_is_an_error(server: Server, bin_folder: Path) -> None:
    """Without a recent Go the error has the version found and the version needed."""
    with pytest.raises(GoMissing, match=r"Go 1\.26\.0 or newer .* there is no `go` on PATH"):
        find_go([server.module])
    install_go(bin_folder, version="1.21.5")
    with pytest.raises(GoMissing, match=r"Go 1\.26\.0 or newer .* is Go 1\.21\.5"):
        build_missing(io.StringIO(), [server])


def test_missing_servers_skip_here_and_fail_in_ci(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that needs servers is skipped with the reason; in CI it fails with the same one."""
    with pytest.raises(SkippedServersMissing, match="no `go` on PATH") as skipped:
        require_servers()
    assert isinstance(skipped.value, SkipTest)
    install_go(bin_folder)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(ServersMissing, match=r"run `python -m tests\.environments\.server`") as failed:
        require_servers()
    assert not isinstance(failed.value, SkipTest)


def test_kubebuilder_assets_are_used_for_the_newest_version(
    bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs in KUBEBUILDER_ASSETS take precedence over the cache, except for the oldest version."""
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert require_servers(NEWEST).kube_apiserver == tmp_path / "kube-apiserver"
    assert find(ETCD, cache_folder()) == tmp_path / "etcd"
    assert find(KUBE_APISERVER[OLDEST], cache_folder()) is None
    list_servers()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"{os.sep}etcd")
    assert lines[-1].endswith("not built")
