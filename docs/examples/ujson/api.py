"""A service that answers with JSON, by ujson 5.3.0. An answer that can't be encoded is an error for one customer, and a leak for everybody."""
import time
import ujson


def refuse(value):
    raise TypeError(f"cannot encode {value!r}")


for request in range(3000):
    answer = {"items": ["x" * 100] * 900, "price": request if request % 3 else object()}
    try:
        ujson.dumps(answer, default=refuse)
    except TypeError:
        pass
    if request % 50 == 0:
        time.sleep(0.02)
