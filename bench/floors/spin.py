"""An unrelated process that keeps one core busy: says that it runs, then spins until it is killed."""

if __name__ == "__main__":
    print("spinning", flush=True)
    while True:
        pass
