#!/bin/sh
# Makes the virtual environment: launch/install.sh VENV PYTHON EXTRAS (EXTRAS: "tf,dev" or "").
# Uses uv, the user's or a copy in VENV, else pip, at the tested versions in constraints.txt.
# VENV/.installed records what is installed, so that a second call returns at once; VENV/.lra-fnet
# marks the folder as made by this script, which deletes no other.
set -eu
venv=$1 python=$2 extras=$3

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    found=$("$python" --version 2>&1 || true)
    echo "lra-fnet needs Python 3.11 or later, but \"$python\" is ${found:-not found}; try make PYTHON=python3.12 ..." >&2
    exit 2
}
if command -v flock >/dev/null 2>&1; then # two at once would write into one folder
    mkdir -p "$(dirname "$venv")"
    exec 9>"$venv.lock"
    flock -n 9 || {
        echo "waiting for another installation into $venv" >&2
        flock 9
    }
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
key="$version $(cat pyproject.toml constraints.txt | cksum)"
note="$venv/.installed" mark="$venv/.lra-fnet"

if [ ! -f "$note" ] || [ "$(head -n 1 "$note")" != "$key" ]; then
    if [ -f "$note" ] && [ "$(head -n 1 "$note" | cut -d' ' -f1)" = "$version" ]; then
        extras="$extras,$(tail -n +2 "$note" | tr '\n' ',')" # reinstall those at the new versions
    elif [ -f "$note" ] || [ -f "$mark" ] || [ -z "$(ls -A "$venv" 2>/dev/null)" ]; then
        rm -rf "$venv"
    else
        echo "expected VENV to be a new folder or an environment that make made, got $venv with other files: name another folder, or remove it" >&2
        exit 2
    fi
    mkdir -p "$venv"
    touch "$mark"
    rm -f "$note"
fi
missing=
for extra in base $(echo "$extras" | tr ',' ' '); do
    grep -qx "$extra" "$note" 2>/dev/null || missing="$missing $extra"
done
[ -n "$missing" ] || exit 0
known=$(sed -n '/^\[project.optional-dependencies\]/,/^\[/s/^\([a-z]*\) = .*/\1/p' pyproject.toml | paste -sd' ' -)
for extra in $missing; do
    case " base $known " in *" $extra "*) ;; *)
        echo "expected extras out of $known, got \"$extra\" (make: ACCELERATOR=cuda for an NVIDIA GPU; for a TPU see docs/clusters.md)" >&2
        exit 2
        ;;
    esac
done

# Installs with a copy of uv that pip brings: a third of pip's time. Fails where pip has an index of its
# own, which uv would pass by. The cache lies in VENV, so that files are linked, and is not kept. Python
# compiles at its first import, except where it may not write what it compiles.
with_uv() {
    settings=$(pip config list) || return 1
    ! echo "$settings" | grep -q '\.index-url=' || return 1
    links=$(echo "$settings" | sed -n "s/.*\.find-links='\(.*\)'/\1/p" | head -n 1)
    pip install -q --retries 0 'uv<1' &&
        UV_FIND_LINKS=$links UV_CACHE_DIR="$venv/.cache" "$venv/bin/uv" pip install -q \
            ${PYTHONDONTWRITEBYTECODE:+--compile-bytecode} --python "$venv/bin/python" \
            -c constraints.txt -e "$package"
}

pip() {
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore "$venv/bin/python" -m pip "$@"
}

# Keeps of pip's settings, in files and variables, those of where packages come from. In an environment
# of its own the others make no sense (user, target, require-hashes) or give another one.
only_sources() {
    keep='(extra-)?index-url|find-links|no-index|trusted-host|proxy|(client-)?cert|(default-)?timeout|retries|(no-)?cache-dir|constraint'
    kept=$(pip config list 2>/dev/null | sort -r | # variables last, since they win
        sed -nE "s/\\\\n/ /g; s/^[^.]*\\.($keep)='(.*)'\$/\\1 \\6/p" || true)
    for name in $(env | sed -n 's/^\(PIP_[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
    export PIP_CONFIG_FILE=/dev/null
    while read -r name value; do
        [ -z "$name" ] || export "PIP_$(echo "$name" | tr 'a-z-' 'A-Z_')=$value"
    done <<EOF
$kept
EOF
}

# Runs a command without pip's warnings about folders of wheels that do not exist: a newcomer cannot
# act on them. Everything else on standard error stays visible.
quietly() {
    errors=$(mktemp)
    code=0
    "$@" 2>"$errors" || code=$?
    grep -v "^WARNING: Location .* is ignored" "$errors" >&2 || true
    rm -f "$errors"
    return $code
}

wanted=$(echo "$missing" | tr ' ' '\n' | grep -v '^base$' | sort -u | grep . | paste -sd, - || true)
package=".${wanted:+[$wanted]}"
echo "installing lra-fnet${wanted:+ with $wanted} into $venv (Python $version, about a minute)" >&2
if command -v uv >/dev/null 2>&1; then
    [ -x "$venv/bin/python" ] || uv venv -q --allow-existing --python "$python" "$venv"
    uv pip install -q --python "$venv/bin/python" -c constraints.txt -e "$package"
else
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    only_sources
    with_uv 2>/dev/null || quietly pip install -q -c constraints.txt -e "$package"
    rm -rf "$venv/.cache"
fi
installed=$(tail -n +2 "$note" 2>/dev/null || true)
{
    echo "$key"
    echo "$installed $missing" | tr ' ' '\n' | grep . | sort -u
} >"$note.new"
mv "$note.new" "$note"
