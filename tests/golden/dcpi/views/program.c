/* The image of the profiles beside it: make.sh builds it. */
static char arena[4096];
static unsigned long used;

static char *take(unsigned long size)
{
	char *block = arena + used;
	used += size;
	return block;
}

__attribute__((noinline)) char *small_blocks(int count)
{
	char *last = 0;
	for (int i = 0; i < count; i++)
		last = take(8);
	return last;
}

__attribute__((noinline)) char *large_block(void)
{
	return take(1024);
}

void _start(void)
{
	small_blocks(3);
	large_block();
	for (;;)
		;
}
