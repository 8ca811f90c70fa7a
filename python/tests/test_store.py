import tensortier


def test_opens_and_closes(tmp_path):
    store = tensortier.Store(8 << 20, [tmp_path])
    assert list(tmp_path.iterdir())
    store.close()
    assert not list(tmp_path.iterdir())
