#!/usr/bin/env python3
"""Answers that random choices under a schema's mask lead to, each validated with python3-jsonschema.

test_walks.py SCHEMA_WALK SCHEMAS [WALKS [SEED]]: the program, a JSON list of {"name", "schema"}, how many answers
for each schema. Prints every
answer that does not validate, and fails; exits with 77 where the validator is not installed."""

import json
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    sys.stderr.write("skipped: the Python package jsonschema is missing (Debian: python3-jsonschema)\n")
    sys.exit(77)


def checker(validator):
    """The formats that the draft knows; older releases keep them beside the class."""
    found = getattr(validator, "FORMAT_CHECKER", None)
    return found or getattr(jsonschema, "draft202012_format_checker")


def main():
    program, schemas = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
    walks, seed = (sys.argv[3:] + ["60"])[0], (sys.argv[4:] + ["1"])[0]
    rows = [{"schema": row["schema"], "compact": compact} for row in schemas for compact in (False, True)]
    names = [row["name"] for row in schemas for _ in (False, True)]
    answer = subprocess.run([program, walks, seed], input="".join(json.dumps(row) + "\n" for row in rows),
                            capture_output=True, text=True, check=False, encoding="utf-8")
    lines = answer.stdout.split("\n")[:-1]
    wrong, valid, unfinished = 0, 0, 0
    if answer.returncode or len(lines) != len(rows):
        print("%s ended with %d after %d of %d schemas: %s" %
              (program, answer.returncode, len(lines), len(rows), answer.stderr[-2000:]))
        return 1
    for name, row, line in zip(names, rows, lines):
        result = json.loads(line)
        if "error" in result:
            print("%s: %s" % (name, result["error"]))
            wrong += 1
            continue
        kind = jsonschema.validators.validator_for(row["schema"], default=jsonschema.Draft202012Validator)
        validator = kind(row["schema"], format_checker=checker(kind))
        unfinished += result["unfinished"]
        for text in result["walks"]:
            try:
                value = json.loads(text)
                fault = next((error.message for error in validator.iter_errors(value)), None)
            except ValueError as error:
                fault = "no JSON: %s" % error
            if fault:
                print("%s: %s\n    %s" % (name, fault, text))
                wrong += 1
            valid += not fault
        if not result["walks"]:
            print("%s: not one answer was finished" % name)
            wrong += 1
    print("%d answers of %d schemas validate, %d are wrong, %d were cut" %
          (valid, len(schemas), wrong, unfinished))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
