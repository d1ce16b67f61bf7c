"""The parts of bench/peers.py: cells (what is measured), data, contenders (who), measure (how), worker, supervise and
report. Tested in tests/cli/peers_test.py."""
