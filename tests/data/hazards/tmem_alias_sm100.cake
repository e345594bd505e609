"""A score tile in tensor memory that one warpgroup reads and then overwrites with what another warpgroup reads back."""


@kernel(target="sm_100a")
def scores(a: In[bf16, 128, 64], b: In[bf16, 128, 64], y: Out[f32, 128, 128]):
    launch(ctas=1)

    first = role(warpgroup)
    second = role(warpgroup)
    producer = role(thread)
    issuer = role(thread)

    a_s = smem(bf16, 128, 64, swizzle=128)
    b_s = smem(bf16, 128, 64, swizzle=128)
    s_t = tmem(f32, 128, 128, owner=issuer)
    full = mbarrier()
    done = mbarrier()
    stored = mbarrier()

    with producer:
        expect(full[0])
        tma_load(a_s, a[0:, :], signal=full[0])
        tma_load(b_s, b[0:, :], signal=full[0])
    with issuer:
        wait(full[0])
        tcgen05_mma(s_t, a_s, b_s, init=True)
        tcgen05_commit(done[0])
    with first:
        wait(done[0])
        x = tmem_load(s_t, tmem_d[128, 128])
        tmem_load_wait()
        tmem_store(s_t, x + x)
        tmem_store_wait()
        arrive(stored[0])
    with second:
        wait(stored[0])
        z = tmem_load(s_t, tmem_d[128, 128])
        tmem_load_wait()
        store(y[0:, :], z)
