# shellcheck shell=bash
# bare_roots.sh - bare systems to try things in: Debian 12 and Ubuntu 24.04, made by debootstrap.
# Sourced by bash behind common.sh, never run.  It needs root, and debootstrap and curl.
#
# A script calls `try_in DIR` once, make_root for each system, and enter and leave around what it tries there: each
# time the system is as bare as debootstrap made it.
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

# try_in DIR: where systems are made and tried.  $passed and $failed count from here on.
try_in() {
    work=$1 root=$1/root server='' passed=0 failed=0
    chroot=(chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
}

# check WHAT COMMAND...: counts whether the command succeeds; shows what a failed one printed.
check() {
    local what=$1
    shift
    if "$@" >"$work/check.log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $what" >&2
    else
        failed=$((failed + 1))
        echo "FAILED  $what" >&2
        tail -n 20 "$work/check.log" >&2
    fi
}

# enter ROOT: gives a bare system a place to write, and mounts what programs expect.
enter() {
    leave
    mkdir -p "$root" "$work/upper" "$work/overlay"
    mount -t overlay overlay -o "lowerdir=$work/$1,upperdir=$work/upper,workdir=$work/overlay" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --make-rslave "$root/dev"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
}

# Ends what still runs there, and takes the mounts away.
leave() {
    local mounted
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
    server=
    while read -r mounted; do umount --lazy "$mounted"; done \
        < <(awk -v root="$work/root" 'index($2, root) == 1 { print $2 }' /proc/mounts | sort -r)
    rm -rf "$work/upper" "$work/overlay"
}

inside() {
    "${chroot[@]}" "$@"
}

apt_install() {
    inside apt-get install -y -q --no-install-recommends "$@"
}

# KiB that were written since the system was bare.
used() {
    du -sk --one-file-system "$work/upper" | cut -f1
}
