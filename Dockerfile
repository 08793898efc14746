# One image for every part of corepin: the command chooses (`webhook`, `certs`, ...).
# Python is Debian's. The last stage holds it, the libraries that it links, the locked packages and corepin.
# Both are written by `make renew-pins` from pins.toml. An empty SNAPSHOT takes the packages of the base's own mirror.
ARG BASE=docker.io/library/debian:bookworm-20251229-slim@sha256:d5d3f9c23164ea16f31852f95bd5959aad1c5e854332fe00f7b3a20fcc9f635c
ARG SNAPSHOT=20251230T000000Z

FROM ${BASE} AS debian
ARG SNAPSHOT
# Packages are signed, so plain HTTP will do: the base has no certificates. The Release files of a snapshot are old.
RUN [ -z "${SNAPSHOT}" ] || { rm -f /etc/apt/sources.list.d/debian.sources \
 && at="deb [check-valid-until=no] http://snapshot.debian.org/archive" \
 && for it in "debian/${SNAPSHOT} bookworm" "debian/${SNAPSHOT} bookworm-updates" "debian-security/${SNAPSHOT} bookworm-security"; do \
      echo "${at}/${it} main"; done >/etc/apt/sources.list \
 && apt-get update -qq --error-on=any && rm -rf /var/lib/apt/lists/*; } \
 || { echo "no Debian packages of ${SNAPSHOT}: try again later, or build with those of today: SNAPSHOT= make image" >&2; exit 1; }

# The command of containers. Nothing of the programs changes it, so that it is rarely built anew.
FROM debian AS shim
RUN apt-get update -qq \
 && apt-get install -qq --yes --no-install-recommends musl-tools gcc libc6-dev
WORKDIR /src
COPY pyproject.toml ./
COPY scripts/shim scripts/shim
COPY shim shim
RUN XDG_CACHE_HOME=/tmp/cache scripts/shim /cmk

FROM debian AS build
RUN apt-get update -qq \
 && apt-get install -qq --yes --no-install-recommends python3 python3-venv ca-certificates
WORKDIR /src
ENV QUIET="--quiet --no-cache-dir --disable-pip-version-check" \
    COMPILE="python3 -m compileall -q -f --invalidation-mode unchecked-hash"
COPY requirements.lock requirements.unused requirements-build.lock ./
# The program's own environment gets the locked dependencies; pip and the build's tools stay in another one. Of the
# commands that the dependencies bring none is called.
RUN python3 -m venv /build \
 && /build/bin/pip install ${QUIET} --no-deps --require-hashes -r requirements-build.lock \
 && python3.11 -m venv --without-pip /opt/corepin \
 && /build/bin/pip --python /opt/corepin/bin/python install ${QUIET} --no-compile --no-deps --require-hashes --only-binary :all: -r requirements.lock \
 && find /opt/corepin/bin -type f -delete \
 && cd /opt/corepin/lib/python3.11/site-packages && rm -rf $(grep -o '^[^# ]*/[^ ]*' /src/requirements.unused)
COPY scripts/image-root scripts/image-root
# Compiled here, because the root file system is read-only where it runs; by hash, so that file times do not matter.
# Byte code takes the place of others' sources: a traceback names file, line and function without them.
RUN scripts/image-root /debian \
 && ${COMPILE} -b -s /debian /debian/usr/lib/python3.11 \
 && ${COMPILE} -b /opt/corepin/lib \
 && find /debian/usr/lib/python3.11 /opt/corepin/lib -type f \( -name '*.py' -o -name '*.py[ix]' -o -name '*.pxd' \) -delete
COPY pyproject.toml README.md LICENSE ./
COPY pinning pinning
COPY apiserver apiserver
COPY kubeyaml kubeyaml
COPY logs logs
COPY webhook webhook
COPY agent agent
COPY certs certs
COPY corepin corepin
COPY dashboard dashboard
COPY drawing drawing
COPY published published
# Corepin's own sources stay beside their byte code: they are small, and tracebacks show their lines.
RUN /build/bin/pip wheel ${QUIET} --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /build/bin/pip --python /opt/corepin/bin/python install ${QUIET} --no-compile --no-deps --no-index --root /own /wheels/*.whl \
 && rm /own/opt/corepin/bin/kubectl-corepin \
 && ${COMPILE} -s /own /own/opt/corepin/lib

# Nothing of Debian's but Python and what it links: no shell, no package manager. One layer for each that changes alone.
FROM scratch
COPY --from=build /debian /
COPY --from=build /opt/corepin /opt/corepin
COPY --from=shim /cmk /opt/corepin/libexec/cmk
COPY --from=build /own /
ENV PATH=/opt/corepin/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /
EXPOSE 8443 8080
ENTRYPOINT ["corepin"]
CMD ["--help"]
