"""The reasons why raw operations have no rule: by the form of their names, which tells families of operations apart.

Operations whose reason is in `NOT_OF_ARRAYS` are left out where it is counted how many have a rule.
"""

from __future__ import annotations

import re

# reasons of operations that do not compute on arrays
STRINGS = "it computes on strings: do this part with TensorFlow, outside, on the host"
FILES = "it reads or writes files, or decodes what is in them: do this part with TensorFlow, outside, on the host"
DATASETS = "it belongs to an input pipeline (tf.data, queues, readers): iterate outside, and pass what it gives"
SUMMARIES = "it writes summaries or shows values to a debugger: do it outside of the function, with its results"
DEVICES = "it belongs to a device, a runtime or a compiler of TensorFlow, which is not here"
TABLES = "it makes or writes a look-up table, which lives on TensorFlow's host: do that outside, with TensorFlow"
STATES = "it holds state of TensorFlow's process other than variables (sessions, stages, locks, accumulators)"
DEPRECATED = "TensorFlow has deprecated it: a newer operation does the same"
REWRITTEN = "TensorFlow makes it itself when it rewrites graphs for its own kernels: no program holds it"
TREES = "it belongs to estimators of TensorFlow 1 (trees, linear models), which TensorFlow 2 has no front for"
# reasons of operations that might have a rule
LOOPS = "it is control flow of TensorFlow 1: save the graph (a SavedModel, a frozen graph), and tg.graft reads that"
BY_REFERENCE = (
    "it holds or writes a variable by reference, of TensorFlow 1: save the graph, and tg.graft reads the SavedModel"
)
LEARNS = "what it draws depends on all that its kernel has seen: draw with tf.random.log_uniform_candidate_sampler"
NO_KERNEL = "TensorFlow has no kernel for it on a CPU, so that nothing says what it gives"
CRASHES = "TensorFlow's kernel for it on a CPU ends the process (2.21), so that nothing says what it gives"

NOT_OF_ARRAYS = {STRINGS, FILES, DATASETS, SUMMARIES, DEVICES, TABLES, STATES, DEPRECATED, REWRITTEN, TREES}

# (pattern of a name, reason); the first pattern that matches the whole name counts
PATTERNS: list[tuple[str, str]] = [
    (r"_.*", REWRITTEN),
    (r".*(TPU|Tpu|Xla|SparseCore|Cudnn|Nccl|DTensor|Minibatch|CooTensor).*", DEVICES),
    (r"(Collective|Infeed|Outfeed|Prelinearize|Rpc|Risc|Dtensor).*", DEVICES),
    (r"AllToAll|CrossReplicaSum|GlobalIterId|SyncDevice|WorkerHeartbeat", DEVICES),
    (r"DeviceIndex|Recv|Send|SymbolicGradient", DEVICES),
    (r"(Is)?BoostedTrees.*|Sdca.*|KMC2.*|Kmeans.*|NearestNeighbors", TREES),
    (r".*(Dataset|Iterator|MemoryCache|ThreadPoolHandle|StatsAggregator|SeedGenerator).*", DATASETS),
    (r"DummyIterationCounter|WindowOp|ComputeBatchSize|DistributedSave", DATASETS),
    (r"(Experimental|Anonymous)(?!.*(HashTable)).*|CompressElement|UncompressElement|GetElementAtIndex", DATASETS),
    (r".*Queue.*|.*Reader(V2)?|Reader.*|Barrier.*|Batch|BatchFunction", DATASETS),
    (r"Unbatch(Grad)?|RecordInput|GetOptions", DATASETS),
    (r".*(String|Unicode|Regex).*|Substr|.*ReduceJoin|.*SegmentJoin|EditDistance", STRINGS),
    (r"(En|De)codeBase64|Bytes.*|.*Fingerprint|SdcaFprint|DebugNumeric.*|Skipgram", STRINGS),
    (r"(Decode|Encode|Parse)(?!dRaw).*|ExtractJpegShape|(Des|S)erialize.*|AudioMicrofrontend", FILES),
    (r"(Save|Restore|MergeV2|ReadFile|WriteFile|Matching|Sharded).*", FILES),
    (r"(FileSystem|LoadAndRemap|GenerateVocab|Immutable).*", FILES),
    (r".*Summary.*|ImportEvent|Debug.*|Print|PrintV2|WriteRaw.*|DumpTensor|Calibration.*|CheckPinned", SUMMARIES),
    (r".*(Lookup|Hash)Table.*|InitializeTable.*|Mutable(Dense)?Hash.*", TABLES),
    (r"(Ordered)?Map(Clear|IncompleteSize|Peek|Size|Stage|Unstage).*|Stage.*|Unstage|.*Mutex.*", STATES),
    (r"Stack(V2|Pop|Push|Close).*|Stack|.*Session(Handle|Tensor).*|.*Accumulator.*|Timestamp|Fact|Abort", STATES),
    (r"(Add|Take)ManySparse.*|AddSparseToTensorsMap|DestroyResourceOp|DisableCopyOnRead", STATES),
    (r"(Ref)?(Enter|Exit|Merge|NextIteration|Switch)|RefSelect|LoopCond", LOOPS),
    (r".*UnigramCandidateSampler", LEARNS),
    (r"Assign(Add|Sub)?|Variable(V2)?|(Destroy)?TemporaryVariable|IsVariableInitialized", BY_REFERENCE),
    (r"QuantizedConv2DWithBias(Signed)?SumAndRelu.*", CRASHES),
    (r"CTCLossV2|Conv2DBackprop(Filter|Input)V2|GenerateBoundingBoxProposals|MaxPoolGradGradWithArgmax", NO_KERNEL),
    (r"Segment(Max|Min|Prod|Sum)V2|IsBoostedTrees.*|QuantizedReluX|SparseMatrix.*", NO_KERNEL),
    (r"(Batch(Cholesky|Matrix|Self|Svd|FFT|IFFT|NormWith)|TensorArray).*", DEPRECATED),
]  # fmt: skip


def reason_of(name: str) -> str | None:
    """Return the reason why an operation has no rule, by its name alone; None where no form fits."""
    return next((reason for form, reason in PATTERNS if re.fullmatch(form, name)), None)
