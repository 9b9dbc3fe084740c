#!/bin/sh
# `iree-compile`, which keeps what it wrote: tests with caches of their own need the same modules many times. `support.rs` adds the
# paths of the compiler and of a folder for results.
PATH=/usr/bin:/bin
if [ "$1" = --version ]; then
    new=$results/version.$$
    [ -s "$results/version" ] || { "$compiler" --version >"$new" && mv "$new" "$results/version"; } || exec "$compiler" --version
    exec cat "$results/version"
fi
# A module comes from stdin, `-`. The path of a file would become a part of it.
[ "$1 $2" = '- -o' ] || exec "$compiler" "$@"
output=$3
shift 3
key=$({ printf '%s\n' "$@"; cat; } | sha256sum) || exit
result=$results/${key%% *}
if [ ! -e "$result" ]; then
    new=$result.$$
    "$compiler" - -o "$new" "$@" </dev/stdin >"$new.log" 2>&1
    status=$?
    cat "$new.log" >&2
    [ $status -eq 0 ] || { rm -f "$new" "$new.log"; exit $status; }
    mv "$new.log" "$result.log" && mv "$new" "$result"
else
    cat "$result.log" >&2
fi
exec cp "$result" "$output"
