# shellcheck shell=bash disable=SC2034
# common.sh - what scripts/build, scripts/package, scripts/quality/eval and scripts/test share:
# Debian packages, the build, the Python environment of the end-to-end tests.  Sourced by bash after
# `cd` to the repository root, never run.

BUILD_PACKAGES=(build-essential ca-certificates meson ninja-build pkg-config libmicrohttpd-dev libuv1-dev
    libgnutls28-dev libjansson-dev libpcre2-dev libutf8proc-dev libcmocka-dev libzmq3-dev libcurl4-gnutls-dev)
# What the page at / shows Markdown, colours and PDF files with.  Not every release has all of them.
LIBRARY_PACKAGES=(libjs-marked libjs-highlight.js libjs-pdf)
# What the binary needs when it runs.  The packages are those of Debian 12.
RUNTIME_PACKAGES=(libmicrohttpd12 libgnutls30 libuv1 libjansson4 libpcre2-8-0 libstdc++6 libzmq5
    libcurl3-gnutls ca-certificates)
# What Debian 13 and Ubuntu 24.04 call some of them.
declare -A LATER_NAMES=([libmicrohttpd12]=libmicrohttpd12t64 [libgnutls30]=libgnutls30t64 [libuv1]=libuv1t64
    [libcurl3-gnutls]=libcurl3t64-gnutls)
# The end-to-end tests speak through the official client, from a virtual environment of their own,
# put nginx in front, and run the evaluation, which needs the second line of packages.  Prometheus and its promtool
# judge /metrics, the rules and the dashboard; systemd-analyze and kubernetes-validate the manifests.  patchelf makes
# wheels.
TEST_PACKAGES=(python3 python3-venv nginx-light patchelf prometheus systemd)
PYTHON_PACKAGES=(jinja2 jsonschema kubernetes-validate msgpack openai openapi-spec-validator pytest pytest-xdist pyzmq tokenizers
    aiohttp matplotlib numpy pyyaml tqdm)

# The tests of the pages drive a headless browser.
UI_PACKAGES=(chromium fonts-dejavu-core)

say() {
    printf '\n== %s\n' "$*" >&2
}

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

can_be_root() {
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# Prints those of the named packages that dpkg does not have installed.
missing_packages() {
    local package
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            echo "$package"
    done
}

# Touches neither network nor apt when everything is there, so an offline machine works.
install_packages() {
    local missing
    if ! command -v dpkg-query >/dev/null; then
        say "not a Debian system: assuming that these are installed: $*"
        return
    fi
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    can_be_root || die "packages are missing, and there is neither root nor sudo.  Let root run this, and try again:" \
        "apt-get install --no-install-recommends ${missing[*]}"
    say "installing ${missing[*]}"
    as_root apt-get update -q >&2 || true # what cannot be reached may not be needed
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 ||
        die "apt-get could not install what is missing: look at the network and at /etc/apt/sources.list, and try again"
}

# Installs those of the page's libraries that there are; the build does without the others.
install_libraries() {
    local package
    can_be_root || return 0
    (install_packages "${LIBRARY_PACKAGES[@]}") && return
    for package in "${LIBRARY_PACKAGES[@]}"; do
        (install_packages "$package") || say "the page at / does without $package"
    done
}

# axe_script DIR: fetches the wheel with axe-core once, without the browsers' driver that it is made for,
# into DIR: a script that finds what people with disabilities cannot use on a page.
axe_script() {
    [ ! -d "$1" ] || return 0
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --target "$1" \
        axe-playwright-python >&2 || die "pip could not install axe-playwright-python"
}

# check_tools: ends in a sentence where a tool that every build needs is missing or too old: on systems
# other than Debian, or on old ones.
check_tools() {
    local tool version
    for tool in "${CC:-cc}" pkg-config python3 ninja meson; do
        command -v "${tool%% *}" >/dev/null ||
            die "$tool is not there: a build needs a C compiler, pkg-config, python3, ninja and meson 1.0"
    done
    version=$(meson --version) || die "meson does not run: a build needs meson 1.0 or newer"
    case $version in
    0.*) die "meson $version is too old, 1.0 is the oldest that will do.  A newer one, for this shell alone:" \
        "python3 -m venv ~/meson && ~/meson/bin/pip install meson && PATH=~/meson/bin:\$PATH" ;;
    esac
}

# gaps DIR: prints what the program built there was built without, a line each: what `quire version`
# says.
gaps() {
    [ ! -x "$1/quire" ] || "$1/quire" version 2>/dev/null | sed -n 's/^without //p'
}

# may_have_come NAME: tells whether what a build lacked can be there now.  xgrammar needs the network,
# which only an attempt shows.
may_have_come() {
    case $1 in
    xgrammar) command -v c++ ;;
    ZeroMQ) pkg-config --exists 'libzmq >= 4.2' ;;
    libcurl) pkg-config --exists 'libcurl >= 7.85' ;;
    CUDA) command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ] ;;
    esac >/dev/null 2>&1
}

# look_again DIR: configures DIR anew where something that was not found may have come; what was
# switched off stays off.
look_again() {
    local line
    while read -r line; do
        case $line in *'it is disabled there') continue ;; esac
        may_have_come "${line%%:*}" || continue
        say "$1 was built without ${line%%:*}: looking for it again"
        meson setup --reconfigure "$1" >&2 || true
        return
    done < <(gaps "$1")
}

# build_for_all DIR: makes a build for one processor, which has no tests, one for all.
build_for_all() {
    ! grep -q absent_kernels.c "$1/build.ninja" || meson configure "$1" -Dcpu_kernels=all >&2
}

# tell_gaps DIR: says what the program lacks, and how to get it.
tell_gaps() {
    local line
    while read -r line; do
        say "$1/quire is built without $line"
    done < <(gaps "$1")
}

# What ninja is asked for; nothing: all, with the tests.
BUILD_TARGETS=()

# build_in DIR [meson setup options]: configures DIR once, then builds BUILD_TARGETS.  Build output goes
# to stderr: stdout belongs to the program that runs afterwards.
build_in() {
    local dir=$1
    shift
    check_tools
    if [ ! -f "$dir/build.ninja" ]; then
        # A setup that was interrupted leaves a directory without build.ninja; meson starts it over.
        meson setup "$dir" "$@" >&2
    else
        look_again "$dir"
        [ ${#BUILD_TARGETS[@]} -gt 0 ] || build_for_all "$dir"
    fi
    ninja -C "$dir" "${BUILD_TARGETS[@]}" >&2
}

# Sets PYTHON to an interpreter that has the packages of the end-to-end tests: the system's when it
# has them all, else that of build/venv, made once.  The stamp file holds the list, so a changed
# list makes the environment anew and an interrupted installation is not mistaken for a whole one.
python_environment() {
    local venv=build/venv stamp=build/venv/packages
    if python3 -c 'import importlib.metadata as m, sys; [m.version(p) for p in sys.argv[1:]]' \
        "${PYTHON_PACKAGES[@]}" 2>/dev/null; then
        PYTHON=python3
        return
    fi
    PYTHON=$venv/bin/python
    [ "$(cat "$stamp" 2>/dev/null)" != "${PYTHON_PACKAGES[*]}" ] || return 0
    say "making $venv (${PYTHON_PACKAGES[*]})"
    rm -rf "$venv"
    python3 -m venv "$venv" >&2 || die "python3 -m venv failed"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check "${PYTHON_PACKAGES[@]}" >&2 ||
        die "pip could not install ${PYTHON_PACKAGES[*]}: the end-to-end tests need a reachable" \
            "package index (scripts/test --unit runs the rest)"
    echo "${PYTHON_PACKAGES[*]}" >"$stamp"
}
