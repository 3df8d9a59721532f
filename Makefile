# What a developer does often. The work itself is in bin/ and .ci/.

.PHONY: test quick lint format bench demo man docs

test:
	bin/test

quick:
	bin/test --quick

lint:
	.ci/run lint

format:
	ruff="$$(bin/venv lint)/bin/ruff" && "$$ruff" check --fix --exit-zero . && "$$ruff" format .

bench:
	venv="$$(bin/venv test)" && "$$venv/bin/python" bench/table.py

demo:
	bin/demo

man:
	venv="$$(bin/venv run)" && "$$venv/bin/python" -m psched.cli.man build/man

docs:
	bin/docs
