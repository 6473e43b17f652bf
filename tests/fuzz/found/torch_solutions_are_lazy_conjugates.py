# torch on numpy
#   v1: is_conj False, the CPU: True
v0 = T((3, 3), torch.complex64, 2)
v1 = torch.linalg.solve(v0, T((2, 3), torch.complex64, 5), left=False)
v2 = torch.linalg.lu_solve(*torch.linalg.lu_factor(v0), T((2, 3), torch.complex64, 5), left=False)
v3 = v1 * 2
v4 = torch.linalg.solve_ex(torch.eye(3, dtype=torch.complex64, device=D), T((2, 3), torch.complex64, 5), left=False, check_errors=True)
