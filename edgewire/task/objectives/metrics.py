def main_metrics(counts):
    return ["accuracy"]
