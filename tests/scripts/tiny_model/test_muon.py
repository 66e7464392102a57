import torch

from scripts.tiny_model.muon import Muon, orthogonalise


def test_singular_values_end_near_one_and_the_directions_stay():
    torch.manual_seed(0)
    for shape in [(3, 16, 48), (3, 48, 16)]:
        matrices = torch.randn(shape)
        u, _, vt = torch.linalg.svd(matrices, full_matrices=False)
        values = u.mT @ orthogonalise(matrices) @ vt.mT
        on_diagonal = values.diagonal(dim1=1, dim2=2)
        assert ((on_diagonal > 0.6) & (on_diagonal < 1.3)).all()
        assert (values - torch.diag_embed(on_diagonal)).abs().max() < 1e-4


def test_matches_the_librarys_optimizer_up_to_rounding():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(32, 16)) for _ in range(3)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    library = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    optimizer = Muon(ours, lr=0.1)
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        library.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() < 0.02 * other.norm()
