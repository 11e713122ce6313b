# shellcheck shell=bash
# arm_sysroot.sh - cross-building for 64-bit ARM on Debian: the compilers, ARM's libraries, the build.
# Sourced by bash behind common.sh, never run.

arm_folder=$PWD/build/arm

# Fetches the libraries that quire is built with, and theirs, as packages for arm64, unless those of this list are
# there.  apt keeps them and its
# lists apart from this system's, so that nothing here changes.
fetch_sysroot() {
    local libraries=() package apt
    [ "$(cat "$arm_folder/sysroot/packages" 2>/dev/null)" != "${BUILD_PACKAGES[*]}" ] ||
        [ ! -e "$arm_folder/sysroot/owners" ] || return 0
    say "fetching ARM's libraries into $arm_folder"
    for package in "${BUILD_PACKAGES[@]}"; do
        case $package in lib*) libraries+=("$package") ;; esac
    done
    mkdir -p "$arm_folder"/apt/{state/lists,cache/archives}/partial "$arm_folder/sysroot"
    : >"$arm_folder/apt/status"
    apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$arm_folder/apt/state"
        -o Dir::State::status="$arm_folder/apt/status" -o Dir::Cache="$arm_folder/apt/cache" -o Debug::NoLocking=1)
    "${apt[@]}" update >&2
    "${apt[@]}" install -y --download-only --no-install-recommends libc6-dev libstdc++-12-dev "${libraries[@]}" >&2
    for package in "$arm_folder"/apt/cache/archives/*.deb; do
        dpkg -x "$package" "$arm_folder/sysroot"
        # Which package each library is from, for the licences of a wheel.
        # shellcheck disable=SC2016 # dpkg-deb fills it in
        dpkg-deb --fsys-tarfile "$package" | tar -t | grep '\.so' |
            sed "s|^\./\(.*\)|\1 $(dpkg-deb --show --showformat='${Package} ${Version}' "$package")|" || true
    done >"$arm_folder/owners"
    mv "$arm_folder/owners" "$arm_folder/sysroot/owners"
    rm -r "$arm_folder/apt"
    echo "${BUILD_PACKAGES[*]}" >"$arm_folder/sysroot/packages"
}

# Installs the compilers and qemu (root), and fetches the libraries.
arm_tools() {
    install_packages "${BUILD_PACKAGES[@]}" gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user
    fetch_sysroot
}

# arm_setup DIR [meson setup options]: configures DIR once.
arm_setup() {
    local dir=$1
    shift
    [ ! -f "$dir/build.ninja" ] || return 0
    printf "[constants]\nsysroot = '%s'\n" "$arm_folder/sysroot" >"$arm_folder/sysroot.ini"
    meson setup "$dir" -Dcuda=disabled --cross-file "$arm_folder/sysroot.ini" \
        --cross-file scripts/cross/aarch64.ini "$@" >&2
}
