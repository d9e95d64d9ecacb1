"""For people who train: attention statistics, QK-clip, and normalisers other than softmax."""
