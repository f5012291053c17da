"""Entry point of `python -m chatd.agent`."""

from chatd.agent.main import main

main()
