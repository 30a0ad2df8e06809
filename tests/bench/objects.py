# Builds the given number of small objects, writes them as JSON, and reads them back. With
# PYTHONMALLOC=malloc each object is a call of malloc.
import json
import sys

n = int(sys.argv[1])
data = [{"id": i, "name": "user%d" % i, "v": i * 0.5} for i in range(n)]
text = json.dumps(data)
back = json.loads(text)
print(len(text), len(back))
