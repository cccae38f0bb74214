# shellcheck shell=bash
# The environment of the checkout, sourced by the other scripts; bash 3.2 is enough (macOS).
#
#   root         the checkout, absolute
#   venv         $root/.venv; scripts/peers has another one, in which the checkout is not importable
#   venv_ready LOCK...   returns 0 when .venv holds what every LOCK names, building or completing it first where it does
#                not; otherwise prints the reason to stderr and returns 1. Talks to stderr only and reads no input.
#
# .venv/built/ keeps a copy of each lock that has been installed, with the lock's own modification time, and the path of
# the checkout. The copies are written last: without them whatever lies in .venv counts as missing. A missing or stale
# .venv is built anew with the interpreter $PYTHON, else the first of python3, python3.14 ... python3.11 that fits
# the locks. To change the interpreter of an existing one, remove .venv.

_here=${BASH_SOURCE[0]}
case $_here in
  # The common start, by an absolute path, costs no process.
  /*/./* | /*/../*) root=$(CDPATH= cd "${_here%/*}/.." && pwd) ;;
  /*/scripts/_venv.sh) root=${_here%/scripts/_venv.sh} ;;
  */*) root=$(CDPATH= cd "${_here%/*}/.." && pwd) ;;
  *) root=$(CDPATH= cd .. && pwd) ;;
esac
venv=$root/.venv

_say() { printf 'repl-trio set-up: %s\n' "$*" >&2; }

_fresh() { # LOCK: builtins only, unless the modification times differ
  local lock=$root/$1 copy=$venv/built/$1 built_for=
  [[ -x $venv/bin/python && -f $copy ]] && IFS= read -r built_for <"$venv/built/root" && [[ $built_for == "$root" ]] || return 1
  [[ ! $lock -nt $copy && ! $lock -ot $copy ]] && return 0
  # A checkout gives files new times without new bytes.
  cmp -s "$lock" "$copy" && touch -r "$lock" "$copy"
}

_all_fresh() {
  local lock
  for lock in "$@"; do _fresh "$lock" || return 1; done
}

_choose_python() { # prints the interpreter
  local candidate found=
  # The upper bound and CPython are those of the locks ([tool.uv] in pyproject.toml): elsewhere they would install nothing.
  local fit='import sys, ensurepip, venv
sys.exit(not ((3, 11) <= sys.version_info < (3, 15) and sys.implementation.name == "cpython"))'
  if [[ -n ${PYTHON:-} ]]; then
    "$PYTHON" -I -c "$fit" >&2 && printf '%s\n' "$PYTHON" && return
    _say "PYTHON=$PYTHON is not a CPython 3.11 to 3.14 with the venv and ensurepip modules."
    return 1
  fi
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    "$candidate" -I -c "$fit" >/dev/null 2>&1 && printf '%s\n' "$candidate" && return
    candidate=$(command -v "$candidate") && found+="$candidate "
  done
  _say "needs CPython 3.11 to 3.14 with the venv module (on some systems a package of its own, such as python3-venv)."
  _say "Tried: ${found:-python3, python3.11 to python3.14: none on PATH}. Name one with PYTHON=/path/to/python."
  return 1
}

_install() { # LOCK
  # Wheels only: a source build would bring in a build back end that no lock names.
  "$venv/bin/python" -I -m pip install --quiet --quiet --disable-pip-version-check --no-input --no-compile --no-deps \
    --only-binary :all: --require-hashes -r "$root/$1"
}

_link_tree() { # makes the checkout importable and startable from .venv without a build step
  [[ $venv == "$root/.venv" ]] || return 0
  "$venv/bin/python" -I - "$root" <<'PYTHON'
import os, shlex, sys, sysconfig

root = sys.argv[1]
venv, packages = sys.prefix, sysconfig.get_path("purelib")
with open(os.path.join(packages, "repl_trio.pth"), "w", encoding="utf-8") as path_file:
    path_file.write(f"{root}\n")
launcher = os.path.join(venv, "bin", "repl-trio")
with open(launcher, "w", encoding="utf-8") as script:
    # A "#!" line cannot hold spaces or long paths, so sh starts the interpreter. -I: neither PYTHON* nor the caller's
    # folder may shadow a module of ours. -S and no runpy: site and -m cost as much as half a bare interpreter start, and
    # all that site would do here is the next two lines.
    script.write(f"""#!/bin/sh
'''exec' {shlex.quote(os.path.join(venv, "bin", "python"))} -I -S "$0" "$@"
' '''
import sys

sys.prefix = sys.exec_prefix = {venv!r}
sys.path += [{packages!r}, {root!r}]

from repl_trio.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
""")
os.chmod(launcher, 0o755)
PYTHON
}

_precompile() {
  local packages trees=("$root/repl_trio")
  packages=$("$venv/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
  [[ -d $root/guardian ]] && trees+=("$root/guardian")
  # -j 0 is one process a core. Some packages ship files for other Pythons: what does not compile is not imported either.
  "$venv/bin/python" -I -m compileall -q -j 0 "$packages" "${trees[@]}" >/dev/null 2>&1 || true
}

_stamp() { # LOCK...
  local lock
  mkdir -p "$venv/built" && printf '%s\n' "$root" >"$venv/built/root" || return 1
  for lock in "$@"; do
    cp -p "$root/$lock" "$venv/built/$lock.new" && mv -f "$venv/built/$lock.new" "$venv/built/$lock" || return 1
  done
}

_create() {
  local python=$1
  # pip writes absolute paths, so .venv is built in place; the old one waits beside it in case the new one fails.
  rm -rf "$venv.old" || return 1
  [[ ! -e $venv && ! -L $venv ]] || mv "$venv" "$venv.old" || return 1
  if "$python" -I -m venv "$venv" && _install requirements.lock && _link_tree; then
    rm -rf "$venv.old"
    return 0
  fi
  rm -rf "$venv"
  [[ ! -e $venv.old ]] || mv "$venv.old" "$venv"
  return 1
}

_build() { # LOCK...: with the lock of the set-up held
  local lock python
  _all_fresh "$@" && return 0
  if ! _fresh requirements.lock; then
    python=$(_choose_python) || return 1
    _say "building $venv (once; takes about half a minute)"
    _create "$python" || { _say "failed; the reason is above."; return 1; }
  fi
  for lock in "$@"; do
    if ! _fresh "$lock" && [[ $lock != requirements.lock ]]; then
      _say "installing $lock"
      _install "$lock" || { _say "failed; the reason is above."; return 1; }
    fi
  done
  _precompile && _stamp requirements.lock "$@" && _say "ready"
}

_alone() { # COMMAND...: with the lock of the set-up held
  (
    # flock(2) belongs to the open file, which this subshell and its children share: however they end, the lock ends
    # with the last of them. There is no flock command on macOS, so a Python takes it.
    python=$(_choose_python) || exit 1
    "$python" -I -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null || {
      _say "another start is building $venv; waiting for it"
      "$python" -I -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || exit 1
    }
    "$@"
  ) 9>"$root/.venv.lock" </dev/null >&2
}

venv_ready() { # LOCK...
  _all_fresh "$@" || _alone _build "$@"
}
