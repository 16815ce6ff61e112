import time
def test_real(real_apps, tiny, cluster, capsys):
    with capsys.disabled():
        t=time.time()
        for n,a in real_apps.items():
            print(n, a.post("/v1/chat/completions", {"messages":[{"role":"user","content":"What is the capital of France?"}],"max_tokens":20,"temperature":0}).text, time.time()-t)
            print(n, a.health().text)
        tiny.post("/v1/completions", {"prompt":"hi"})
        time.sleep(2)
        print("\n".join(l for l in cluster.metrics().splitlines() if 'batch' in l and 'bucket' not in l)[:6000])
