#!/bin/sh
# A built-in model against the margins: check.sh SLUICE MODEL MARGINS [options of sluice eval]
# The model is found by its name, as without a path on the command line.
sluice=$1
model=$2
margins=$3
shift 3
failed=0
checked=0
while read -r name task items least; do
    [ "$name" = "$model" ] || continue
    table=$("$sluice" eval -m "$model" --task "$task" -n "$items" "$@") || exit 1
    exact=$(printf '%s\n' "$table" | awk -v task="$task" '$2 == task { print $6 }')
    checked=$((checked + 1))
    if [ "${exact:-0}" -lt "$least" ]; then
        echo "$model: $task: ${exact:-none} of $items right, at least $least wanted"
        failed=$((failed + 1))
    fi
done < "$margins"
# The model that runs when none is named, in the chat format.
if [ "$model" = mini ]; then
    answer=$(echo "What does --temp do?" | "$sluice" chat --temp 0)
    case $answer in
    *temperature*) ;;
    *) echo "without -m: \"$answer\"" && failed=$((failed + 1)) ;;
    esac
fi
echo "$model: $checked tasks, $failed below their margin"
[ "$failed" = 0 ] && [ "$checked" -gt 0 ]
