#!/bin/sh
# Writes the drop-ins that a document shows, each under its file's name: drop_ins.sh DOCUMENT FOLDER. The first line of each block names the file.
awk -v folder="$2/" '
    /^    # \/etc\/systemd\/system\/sluice\.service\.d\// { name = $2; sub(/.*\//, "", name) }
    name && /^    / { print substr($0, 5) > (folder name) }
    name && !/^    / && !/^$/ { name = "" }' "$1"
