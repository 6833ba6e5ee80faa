import logging

from lora_rl.cluster.logs import LogDraining, LogRing


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("lora_rl.engine", level, __file__, 1, text, (), None)


def test_lines_come_once_each_oldest_first() -> None:
    ring = LogRing()
    ring.emit(record("one"))
    ring.emit(record("two", logging.WARNING))
    assert ring.after(0) == [(1, logging.INFO, "lora_rl.engine: one"), (2, logging.WARNING, "lora_rl.engine: two")]
    ring.emit(record("three"))
    assert [number for number, _, _ in ring.after(2)] == [3]
    assert ring.after(3) == []


def test_a_full_ring_drops_the_oldest_and_keeps_the_numbers() -> None:
    ring = LogRing(capacity=2)
    for text in ("one", "two", "three"):
        ring.emit(record(text))
    assert [(number, text[-5:]) for number, _, text in ring.after(0)] == [(2, ": two"), (3, "three")]


def test_what_the_library_logs_is_kept_and_nothing_else() -> None:
    logger = logging.getLogger("lora_rl")
    level, handlers = logger.level, list(logger.handlers)
    try:
        host = LogDraining()
        logging.getLogger("lora_rl.trainer").info("step %d", 3)
        logging.getLogger("lora_rl.trainer").debug("detail")
        logging.getLogger("elsewhere").error("not ours")
        assert [text for _, _, text in host._ring.after(0)] == ["lora_rl.trainer: step 3"]
    finally:
        logger.setLevel(level)
        logger.handlers[:] = handlers
