# stateful seed 7320919 on jax operations
net0 = net("linear", 0)
slots0 = Slots(1.5)
number0 = 1
dict0 = {"b": 3}
set0 = {7}
a0 = X((2, 3), 2)
def f(x, y=None):
    global number0
    net0.scale = 1.5
    slots0.n = 2.5
    number0 = 2
    dict0["a"] = x.detach().sum()
    dict0["b"] = 4
    set0.add(7)
    set0.add(8)
    f.k = 2.5
    setattr(net0, "more", len(x))
f = jit(f, compile="first")
r0 = f(a0)
r1 = f(a0[:1])
net0.scale = slots0.n = net0.more = f.k = 3.5
number0 = dict0["b"] = 5
set0.clear()
r2 = f(a0[:1])
net0.scale = slots0.n = net0.more = f.k = 3.5
number0 = dict0["b"] = 5
set0.clear()
r3 = f(a0)
