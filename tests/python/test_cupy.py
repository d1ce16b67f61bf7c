"""attn on CuPy arrays, where there are CuPy, a GPU and a CUDA backend."""
import unittest

import attn
import reference
from needs import need

np = need("numpy")
cupy = need("cupy")


class Cupy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            attn.Plan("sq128 d64 fp16", backend="cuda")
        except attn.AttnError as error:
            raise unittest.SkipTest(f"the CUDA backend cannot be used: {error}") from None

    def test_values_on_a_side_stream(self):
        host = reference.tensors(1, 128, 128, hq=8, hk=8, dim=64, dtype=np.float16)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            o = attn.attention(*(cupy.asarray(x) for x in host))
            stream.synchronize()
        self.assertIsInstance(o, cupy.ndarray)
        np.testing.assert_allclose(cupy.asnumpy(o), reference.attention(*host)[0], rtol=5e-3, atol=5e-3)


if __name__ == "__main__":
    unittest.main()
