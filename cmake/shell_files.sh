#!/bin/sh
# What shells and man(1) need, asked of the program: shell_files.sh SLUICE FOLDER
set -e
sluice=$1
folder=$2
mkdir -p "$folder/man1"
"$sluice" completion bash > "$folder/sluice"
"$sluice" completion zsh > "$folder/_sluice"
"$sluice" completion fish > "$folder/sluice.fish"
"$sluice" man > "$folder/man1/sluice.1"
for command in $("$sluice" man | sed -n 's/^\.BR sluice\\-\([a-z]*\) (1).*/\1/p'); do
    "$sluice" man "$command" > "$folder/man1/sluice-$command.1"
done
