# array_api seed 1236969 on tensorflow
#   UnimplementedError: TileOp: the input data type is not supported: uint16, dimension 6
v1 = data("uint16", (3,), 960756)
v9 = xp.reshape(v1 >> 3, (1, 1, 1, 3, 1))
v10 = xp.broadcast_to(v9, (1, 3, 1, 3, 3, 2))
