#!/usr/bin/env bash
# Makes a Debian package of each program. Called by `make package`.
#
# Usage: package.sh BIN OUT
set -euo pipefail
bin=${1:?usage: package.sh BIN OUT} out=${2:?usage: package.sh BIN OUT}
here=$(cd "$(dirname "$0")/.." && pwd)
command -v dpkg-deb >/dev/null 2>&1 || { echo "package.sh: there is no dpkg-deb: install dpkg" >&2 && exit 1; }
architecture=$(dpkg --print-architecture)
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The C library that the programs were linked with, and so the oldest they run with.
libc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)

package() { # program, what it is in a line, what it is at length
    local program=$1 summary=$2 text=$3 root=$scratch/$1
    local version
    version=$("$bin/$program" --version | cut -d' ' -f2)
    "$here/scripts/install.sh" "$bin" "$root" /usr "$program" >/dev/null
    gzip -9nf "$root"/usr/share/man/man1/*.1
    install -d "$root/usr/share/doc/$program" "$root/DEBIAN"
    cp "$here/LICENSE" "$root/usr/share/doc/$program/copyright"
    cp "$here/NOTICE" "$root/usr/share/doc/$program/"
    gzip -9nc "$here/CHANGELOG.md" >"$root/usr/share/doc/$program/changelog.gz"
    for page in $4; do
        cp "$here/docs/$page.md" "$root/usr/share/doc/$program/"
        # A manual of several pages: the page is the index of the folder of the same name.
        [ ! -d "$here/docs/$page" ] || cp -R "$here/docs/$page" "$root/usr/share/doc/$program/"
    done
    cp -R "$here/docs/reference" "$root/usr/share/doc/$program/"
    find "$root" -type d -exec chmod 0755 {} +
    find "$root/usr/share" -type f -exec chmod 0644 {} +
    cat >"$root/DEBIAN/control" <<CONTROL
Package: $program
Version: $version
Architecture: $architecture
Maintainer: The Thimble authors <thimble@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $libc), libgcc-s1
Section: net
Priority: optional
Description: $summary
 $text
CONTROL
    (cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k2 >DEBIAN/md5sums)
    dpkg-deb --root-owner-group --build "$root" "$out/${program}_${version}_$architecture.deb" >/dev/null
    echo "$out/${program}_${version}_$architecture.deb ($(du -h "$out/${program}_${version}_$architecture.deb" | cut -f1))"
}

package thimble "Internet-Computer-compatible replica inside a stated memory budget" \
    "Runs canisters for unmodified clients, alone or as a member of a subnet." "operating interface sums"
package thimble-relay "Waku-compatible service node inside a stated memory budget" \
    "Relay, light push, filter, store, peer exchange and metadata for stock clients." "relay"
package thimble-lab "Load drivers, testnets and measuring for nodes of decentralised networks" \
    "Works on a node from outside, and says what its memory did." "cap compare hammer images machines net stress tuning"
