"""`python -m scripts.release`: build a release of the committed tree into dist/."""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scripts.release.archives import files_below, pack
from scripts.release.image import normalise
from scripts.release.plugin import MACHINES, build_plugin, manifest
from scripts.release.sbom import bill, parts_of
from scripts.release.sizes import compared, sizes
from scripts.release.source import EPOCH, ReleaseFailed, committed, run, uncommitted
from tests.image.build import BuildFailed, build_image, forget_image

if TYPE_CHECKING:
    from scripts.release.source import Source

PLACE: Final = "https://releases.example/corepin"  # placeholder for the URL of a release's files
SUMS: Final = "SHA256SUMS"
KREW: Final = "corepin.yaml"
# Names of a release's files. A file without a version in its name, such as krew's manifest, is one only if SHA256SUMS
# lists it.
VERSIONED: Final = re.compile(r"(?:kubectl-)?corepin-[0-9].*|kubectl-corepin-.*")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=__doc__)
    parser.add_argument("--into", metavar="DIR", type=Path, default=Path("dist"), help="default: dist")
    parser.add_argument(
        "--url", metavar="URL", default=PLACE, help=f"base URL of the published files (default: {PLACE})"
    )
    again = "build the image again, from the same base, even if there is one of the same sources"
    parser.add_argument("--again", action="store_true", help=again)
    args = parser.parse_args()
    for line in uncommitted(Path()):
        sys.stderr.write(f"not committed, so no part of the release: {line}\n")
    try:
        with committed(Path()) as source:
            if args.again:
                forget_image(source.folder)
            args.into.mkdir(parents=True, exist_ok=True)
            before = sizes(args.into)
            build(source, args.into, args.url.rstrip("/"))
    except (ReleaseFailed, BuildFailed) as failure:
        sys.stderr.write(f"release: {failure}\n")
        return 1
    sys.stdout.write((args.into / SUMS).read_text())
    sys.stdout.writelines(f"{line}\n" for line in compared(sizes(args.into), before))
    return 0


def build(source: Source, dist: Path, url: str) -> None:
    """Build every file of a release into an emptied folder."""
    make_room(dist)
    build_python(source, dist)
    build_chart(source, dist)
    image = dist / f"corepin-{source.version}-image.tar"
    normalise(build_image(source.folder), image, f"docker.io/library/corepin:{source.version}", source.epoch)
    text = bill(parts_of(image), source.version)
    (dist / f"corepin-{source.version}-image.cdx.json").write_text(text, encoding="utf-8")
    # Built last: its manifest has no version in its name, so make_room accepts it only if SHA256SUMS lists it.
    build_krew(source, dist, url)
    write_sums(dist)


def make_room(dist: Path) -> None:
    """Delete the previous release's files; raise ReleaseFailed if the folder has other files."""
    dist.mkdir(parents=True, exist_ok=True)
    there = sorted(dist.iterdir())
    listed = _listed(dist / SUMS)
    for path in there:
        if not (path.is_file() and (VERSIONED.fullmatch(path.name) or path.name in listed)):
            raise ReleaseFailed(f"{path} is not a release file: remove it, or name another folder")
    for path in there:
        path.unlink()


def _listed(sums: Path) -> frozenset[str]:
    """Return SHA256SUMS and the files that it lists; empty if it is missing or another project's."""
    if not sums.is_file():
        return frozenset()
    names = [line.partition("  ")[2] for line in sums.read_text(errors="replace").splitlines()]
    is_ours = all(VERSIONED.fullmatch(name) or name == KREW for name in names)
    return frozenset([*names, SUMS]) if is_ours else frozenset()


def build_python(source: Source, dist: Path) -> None:
    """Build wheel and source distribution."""
    command = (
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "sdist",
        "-t",
        "wheel",
        "-d",
        str(dist.resolve()),
    )
    run(*command, folder=source.folder, **{EPOCH: str(source.epoch)})


def build_chart(source: Source, dist: Path) -> None:
    """Pack the chart as `helm package` does, but reproducibly."""
    members = files_below(source.folder / "manifests/helm", "corepin")
    pack(dist / f"corepin-{source.version}.tgz", members, source.epoch)


def build_krew(source: Source, dist: Path, url: str) -> None:
    """Build the plugin of kubectl and krew's manifest of it."""
    (wheel,) = dist.glob("*.whl")
    archives: dict[str, Path] = {}
    for machine in MACHINES:
        with tempfile.TemporaryDirectory(prefix="corepin-plugin-") as work:
            archives[machine] = build_plugin(source, wheel, Path(work), dist, machine)
    text = manifest(source.version, archives, f"{url}/v{source.version}")
    (dist / KREW).write_text(text, encoding="utf-8")


def write_sums(dist: Path) -> None:
    """Write the checksums of all files, for `sha256sum --check`."""
    lines = []
    for path in sorted(dist.iterdir()):
        with path.open("rb") as content:
            lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {path.name}\n")
    (dist / SUMS).write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
