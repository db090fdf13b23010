#!/usr/bin/env bash
# Puts the programs, their symbols, manual pages and shell completions below a prefix. Called by
# `make install` and scripts/package.sh.
#
# Usage: install.sh BIN ROOT PREFIX PROGRAM...
#   BIN      folder of the programs that were built
#   ROOT     prepended to every path ("" for this machine's own)
#   PREFIX   /usr/local, /usr
set -euo pipefail
bin=${1:?usage: install.sh BIN ROOT PREFIX PROGRAM...} root=$2 prefix=$3
shift 3
[ "$#" -gt 0 ] || { echo "install.sh: name a program: thimble, thimble-relay, thimble-lab, thimble-pocket" >&2 && exit 2; }
for program in "$@"; do
    [ -x "$bin/$program" ] || { echo "install.sh: $bin/$program is not there: make build" >&2 && exit 1; }
    target=$root$prefix/bin/$program
    symbols=$root/usr/lib/debug$prefix/bin/$program.debug
    install -d "$(dirname "$target")" "$root$prefix/share"
    # A running program is not overwritten: the new file takes the name of the old one.
    if command -v objcopy >/dev/null 2>&1 && command -v strip >/dev/null 2>&1; then
        strip --strip-all -o "$target.new" "$bin/$program"
        install -d "$(dirname "$symbols")"
        objcopy --only-keep-debug "$bin/$program" "$symbols.new"
        mv "$symbols.new" "$symbols"
        chmod 0644 "$symbols"
    else
        echo "install.sh: there is no strip (binutils), so $program keeps its symbols" >&2
        cp "$bin/$program" "$target.new"
    fi
    chmod 0755 "$target.new"
    mv "$target.new" "$target"
    "$bin/$program" manual --share "$root$prefix/share" >/dev/null
    echo "$target ($(du -h "$target" | cut -f1)), its manual pages and completions"
done
