#!/usr/bin/env bash
# image.sh FOLDER: builds the image of deploy/docker/Dockerfile without Docker and without a registry of images, and runs it.
#
# The base, python:3.13-slim, is made of Debian's packages (debootstrap), buildah builds on it, and podman runs what came
# of it as its user, with a read-only root: `pdgate --version`, which has to say "compiled", and the demo's question. All of it
# lies in FOLDER (3 GB). Takes root, Debian's debootstrap, buildah, podman and runc, and four minutes on two cores.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=$(realpath --canonicalize-missing "${1:?usage: image.sh FOLDER}")
version=3.13
suite=trixie # whose python3 that is
base=docker.io/library/python:$version-slim
image=pdgate:image-test

for needed in debootstrap buildah podman runc; do
    command -v "$needed" >/dev/null || { echo "apt-get install debootstrap buildah podman runc" >&2; exit 1; }
done

mkdir -p "$folder"
# One layer over the other needs more of the kernel than a container that this runs in may have.
store=(--root "$folder/store" --runroot "$folder/run" --storage-driver vfs)

if ! buildah "${store[@]}" inspect --type image "$base" >/dev/null 2>&1; then
    rm -rf "$folder/base"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-dev,python3-venv,python3-pip "$suite" "$folder/base" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$folder/debootstrap.log"
    # As python:3.13-slim has it, which lets pip install what it likes.
    ln -sf python3 "$folder/base/usr/bin/python"
    rm -f "$folder"/base/usr/lib/python3*/EXTERNALLY-MANAGED
    container=$(buildah "${store[@]}" from scratch)
    buildah "${store[@]}" add --quiet "$container" "$folder/base" / >/dev/null
    buildah "${store[@]}" commit --quiet "$container" "$base" >/dev/null
    buildah "${store[@]}" rm "$container" >/dev/null
    rm -rf "$folder/base"
fi

# What this machine's pip reads and trusts, if it has anything of its own.
own=()
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || own+=(--volume "$file:$file:ro")
done
buildah "${store[@]}" bud --layers --isolation chroot --network host --pull-never "${own[@]}" \
    --build-arg "PYTHON=$version" --file deploy/docker/Dockerfile --tag "$image" .

run() {
    # podman asks for higher limits than a container that this runs in may give.
    podman "${store[@]}" --runtime runc --cgroup-manager cgroupfs run --rm --pull never --network host --read-only \
        --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$image" "$@"
}

run --version | tee "$folder/version.txt"
grep -q '(compiled)' "$folder/version.txt"
run demo --once --port 0
