"""Graphs of TensorFlow 1: variables by reference, frames of loops, `Switch` and `Merge`, tables in a session.

`structure` finds loops and branches in the nodes; `raising` traces the graph as a function of TensorFlow 2 with
`tf.while_loop`, `tf.cond` and `tf.Variable`s (`operations` translates single operations), so that the rest of the front
end, derivatives included, works as for any other function; `loaded` restores variables and tables in a session.
"""
