from lora_rl.config import AdapterConfig, check_config


def test_what_is_not_given_is_left_to_the_adapter_to_start_from():
    adapter = AdapterConfig(init="somewhere", rank=32, dropout=0.1)
    assert adapter.left_to_init == {"alpha", "rslora", "target_modules"}


def test_a_fresh_adapter_leaves_nothing_to_another():
    assert AdapterConfig(rank=4).left_to_init == frozenset()


def test_what_was_recorded_is_given():
    recorded = AdapterConfig(init="somewhere").model_dump(mode="json")
    assert AdapterConfig.model_validate(recorded).left_to_init == frozenset()


def test_the_default_rank_need_not_fit_where_the_adapter_to_start_from_decides_it():
    values = {"iterations": 1, "model": {"name": "m"}, "data": {"type": "file", "uri": "x.jsonl"}}
    check_config(values | {"adapter": {"init": "somewhere"}, "trainer": {"max_rank": 8}})
