"""attn with PyTorch: bf16 tensors beside PyTorch's own attention, on the GPU if there is one that libattn can use, and
inside torch.compile, where the call is one operator of the graph."""
import sys

try:
    import torch
except ImportError:
    print("SKIP: torch is not installed")
    sys.exit(77)
import attn

torch.manual_seed(0)
device = "cpu"
if torch.cuda.is_available():
    try:
        attn.Plan("sq256 d64 bf16", backend="cuda")
        device = "cuda"
    except attn.AttnError as error:
        print(f"on the CPU: {error}")

batch, seqlen, heads_q, heads_kv, head_dim = 2, 256, 8, 2, 64
q = torch.randn(batch, seqlen, heads_q, head_dim, dtype=torch.bfloat16, device=device)
k, v = (torch.randn(batch, seqlen, heads_kv, head_dim, dtype=torch.bfloat16, device=device) for _ in range(2))

o = attn.attention(q, k, v, causal="bottom_right")
peer = torch.nn.functional.scaled_dot_product_attention(
    q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(heads_q // heads_kv, 1) for x in (k, v)), is_causal=True
).transpose(1, 2)
difference = (o.float() - peer.float()).abs().max().item()
print(f"o {tuple(o.shape)} on {o.device}; differs from PyTorch's by at most {difference:.1e}")
assert difference < 0.03


@torch.compile(backend="aot_eager", fullgraph=True)
def block(q, k, v):
    return attn.attention(torch.relu(q), k, v, scale=0.1) * 2


same = torch.equal(block(q, k, v), attn.attention(torch.relu(q), k, v, scale=0.1) * 2)
print(f"compiled and not compiled agree: {same}")
assert same
