"""Graphs of TensorFlow 1: variables by reference, frames of loops, `Switch` and `Merge`, tables in a session.

`structure` finds loops and branches in the nodes; `raising` traces the graph anew, as a function of TensorFlow 2 with
`tf.while_loop`, `tf.cond` and `tf.Variable`s (`operations`: what single operations become), so that all the rest of the
front end, derivatives included, is as for any other function; `loaded` has a session restore what graphs hold.
"""
