-- 500,000 rows in memory, two indices, then questions.
PRAGMA journal_mode=OFF;
CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT, v TEXT, n INTEGER);
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<500000)
INSERT INTO t SELECT x, printf('key-%08x', (x*2654435761)%4294967296), printf('value %d of some text %d', x, x*7), (x*40503)%65536 FROM c;
CREATE INDEX tk ON t(k);
CREATE INDEX tn ON t(n, k);
SELECT n%16, count(*), max(k), group_concat(substr(v,1,3)) IS NULL FROM t GROUP BY n%16;
SELECT count(DISTINCT substr(k,1,9)) FROM t;
SELECT sum(length(replace(v,'text','TEXTUAL'))) FROM t;
UPDATE t SET v = v || '-' || upper(k) WHERE n<20000;
SELECT count(*) FROM t a JOIN t b ON a.k=b.k WHERE a.n<5000;
