# shellcheck shell=bash
# bare_roots.sh - bare systems to try things in: Debian 12 and Ubuntu 24.04, made by debootstrap.
# Sourced by bash behind common.sh, never run.  It needs root, and debootstrap and curl.
#
# DEBIAN_MIRROR and UBUNTU_MIRROR name other mirrors than this machine's and debootstrap's.

# The keys that sign Ubuntu's archive, from that archive: Debian 12 has no package of them.
ubuntu_keyring=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
ubuntu_keyring_sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8

# The mirror of this machine's own Debian, so that a machine behind a mirror of its own uses that.
debian_mirror() {
    # shellcheck disable=SC2016 # apt-get fills it in
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' \
        'Codename: bookworm' | head -n 1
}

ubuntu_mirror() {
    awk '$1 == "default_mirror" && $2 ~ "//archive" { print $2; exit }' \
        /usr/share/debootstrap/scripts/gutsy
}

# make_root NAME DIR: unpacks a bare system into DIR/NAME, once.  NAME: bookworm or noble.
make_root() {
    local name=$1 dir=$2 root=$2/$1 mirror
    [ ! -e "$root/.whole" ] || return 0
    rm -rf "$root"
    case $name in
    bookworm)
        mirror=${DEBIAN_MIRROR:-$(debian_mirror)}
        debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"}
        ;;
    noble)
        mirror=${UBUNTU_MIRROR:-$(ubuntu_mirror)}
        curl -fsS -o "$dir/keyring.deb" "$mirror/$ubuntu_keyring"
        echo "$ubuntu_keyring_sha256  $dir/keyring.deb" | sha256sum --check --quiet
        dpkg-deb -x "$dir/keyring.deb" "$dir/keyring"
        debootstrap --variant=minbase --components=main,universe \
            --keyring="$dir/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg" \
            noble "$root" "$mirror" gutsy
        ;;
    esac >"$dir/$name.log" || { tail -n 5 "$dir/$name.log" >&2; die "debootstrap of $name failed"; }
    # As in Docker's images: packages that were installed are not kept.
    echo 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };' \
        >"$root/etc/apt/apt.conf.d/docker-clean"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    touch "$root/.whole"
}
