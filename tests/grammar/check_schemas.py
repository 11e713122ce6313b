#!/usr/bin/env python3
"""Checks that what grammars of JSON Schemas allow is valid, by an independent validator.

    check_schemas.py WALK TOKENIZER [--schemas N] [--texts N] [--seed N] [--suite DIR] [--csv]

Random schemas (or those of the JSON Schema test suite's folder, as tests/draft2020-12) are walked
through at random, and every finished text is parsed and validated by the package jsonschema.  With the
suite, an instance that a schema calls invalid must not be what an answer may be.  --csv writes a line
for each schema: what compiling it and its masks took.  Exits 1 when a text is not valid."""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import jsonschema

WORDS = ["name", "age", "city", "street", "items", "id", "größe", "a b", "x", "y_1", "tags", "e\"e"]


def text(rng):
    return "".join(rng.choice("abcxyz ö-9\"\\/\n") for _ in range(rng.randrange(6)))


def scalar(rng):
    return rng.choice([None, True, False, 0, -3, 1.5, 10**12, text(rng), text(rng)])


def string_schema(rng):
    return {"type": "string", **rng.choice([
        {}, {"minLength": rng.randrange(4)}, {"maxLength": rng.randrange(1, 20)},
        {"minLength": 2, "maxLength": rng.randrange(2, 9)},
        {"pattern": rng.choice(["^[a-z]+$", "^\\d{3}-\\d{2,4}$", "^(foo|bar)+$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$",
                                "^[^\\s]{1,5}$", "^\\w+@\\w+\\.com$"])},
        {"format": rng.choice(["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"])}])}


def number_schema(rng):
    low = rng.randrange(-200, 200)
    return rng.choice([
        {"type": "integer"}, {"type": "number"}, {"type": "integer", "minimum": low},
        {"type": "integer", "maximum": low},
        {"type": "integer", "minimum": low, "maximum": low + rng.randrange(1000)},
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 2 + rng.randrange(30)},
        {"type": "number", "minimum": low / 4, "maximum": low / 4 + rng.randrange(1, 50)},
        {"type": "number", "exclusiveMinimum": low}, {"type": "integer", "multipleOf": rng.randrange(1, 9)}])


def array_schema(rng, depth):
    schema = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = make(rng, depth - 1)
    if rng.random() < 0.2:
        schema["prefixItems"] = [make(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.4:
        schema["minItems"] = rng.randrange(3)
    if rng.random() < 0.4:
        schema["maxItems"] = rng.randrange(3, 6)
    return schema


def object_schema(rng, depth):
    names = rng.sample(WORDS, rng.randrange(5))
    schema = {"type": "object", "properties": {name: make(rng, depth - 1) for name in names}}
    if names:
        schema["required"] = rng.sample(names, rng.randrange(len(names) + 1))
    if rng.random() < 0.3:
        schema["additionalProperties"] = rng.choice([False, True, {"type": "integer"}])
    if rng.random() < 0.1:
        schema["minProperties"] = rng.randrange(len(names) + 1)
    if not names and rng.random() < 0.5:
        schema = {"type": "object", "additionalProperties": make(rng, depth - 1)}
    return schema


def make(rng, depth):
    kind = rng.random()
    if depth > 0 and kind < 0.3:
        return object_schema(rng, depth)
    if depth > 0 and kind < 0.45:
        return array_schema(rng, depth)
    if depth > 0 and kind < 0.53:
        return {"anyOf": [make(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
    if depth > 0 and kind < 0.56:
        return {"allOf": [make(rng, depth - 1)], "description": text(rng)}
    if kind < 0.62:
        return {"enum": [scalar(rng) for _ in range(rng.randrange(1, 5))]}
    if kind < 0.65:
        return {"const": rng.choice([scalar(rng), [1, text(rng)], {"a": text(rng)}])}
    if kind < 0.7:
        return {"type": rng.choice(["null", "boolean", ["string", "null"], ["integer", "boolean"]])}
    return string_schema(rng) if kind < 0.87 else number_schema(rng)


def make_root(rng):
    schema = make(rng, 3)
    if rng.random() < 0.15:
        schema = {"type": "object", "properties": {"value": schema, "next": {"anyOf": [
            {"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value"], "$defs": {
                "node": {"type": "object", "properties": {"kids": {
                    "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}}}}
    return schema


def suite_schemas(folder):
    """The suite's schemas, each with its tests."""
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        for case in json.loads(path.read_text()):
            yield f"{path.stem}: {case['description']}", case["schema"], case["tests"]


def ask(walk, requests):
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(walk, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def faults_of(schema, answer):
    validator = jsonschema.Draft202012Validator(schema)
    for written in answer["texts"]:
        try:
            value = json.loads(written)
        except ValueError as error:
            yield f"no JSON: {written!r}: {error}"
            continue
        for fault in validator.iter_errors(value):
            yield f"{written!r}: {fault.message}"
            break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("walk")
    parser.add_argument("tokenizer")
    parser.add_argument("--schemas", type=int, default=2000)
    parser.add_argument("--texts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suite")
    parser.add_argument("--csv", action="store_true")
    args = parser.parse_args()
    if args.suite:
        cases = list(suite_schemas(args.suite))
    else:
        rng = random.Random(args.seed)
        cases = [(f"schema {i}", make_root(rng), []) for i in range(args.schemas)]
    requests = [{"kind": "schema", "text": schema, "seed": args.seed + i, "n": args.texts}
                for i, (_, schema, _) in enumerate(cases)]
    answers = ask([args.walk, args.tokenizer, str(args.tokens)], requests)
    faults = refused = finished = unfinished = 0
    if args.csv:
        print("name,compile_ms,bytes,masks,mask_us,mask_us_99,mask_us_max")
    for (name, schema, _), answer in zip(cases, answers, strict=True):
        if "error" in answer:
            refused += 1
            if not args.suite or "no token" in answer["error"]:
                print(f"refused {name}: {answer['error']}: {json.dumps(schema)[:300]}", file=sys.stderr)
                faults += "no token" in answer["error"]
            continue
        finished += len(answer["texts"])
        unfinished += answer["unfinished"]
        if args.csv:
            print(f"{name},{answer['compile_ms']:.1f},{answer['bytes']},{answer['masks']},"
                  f"{answer['mask_us']:.1f},{answer['mask_us_99']:.1f},{answer['mask_us_max']:.1f}")
        for fault in faults_of(schema, answer):
            faults += 1
            print(f"{name}: {json.dumps(schema)[:600]}\n    {fault[:300]}", file=sys.stderr)
    masks = [(answer["mask_us"] * answer["masks"], answer["masks"]) for answer in answers if "masks" in answer]
    total = sum(n for _, n in masks) or 1
    print(f"{len(cases)} schemas: {len(cases) - refused} accepted, {refused} refused; {finished} texts valid"
          f" but {faults}, {unfinished} unfinished; masks {sum(t for t, _ in masks) / total:.1f} us")
    return 1 if faults or finished == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
