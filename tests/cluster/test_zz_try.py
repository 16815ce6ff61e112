import time
def test_tiny(tiny, narrow, cluster):
    print(tiny.post("/v1/completions", {"prompt":"hi"}).text)
    print(narrow.post("/v1/completions", {"prompt":"hi"}).text)
    print(tiny.engine_stats())
    print(cluster.cli("status"))
    time.sleep(2)
    print([l for l in cluster.metrics().splitlines() if 'actual_batch' in l])
