"""The same program as live.mjs, with asyncio."""

import asyncio
import sys

from toolfleet import AsyncFleet, output_of

what, *rest = sys.argv[1:]
fleet = AsyncFleet()


async def call(id, name):
    return output_of(await fleet.call(session=f"{what}-py", id=id, name=name))


async def main():
    if what == "order":
        right = 0
        for i in range(1, int(rest[0]) + 1):
            _, seen = await asyncio.gather(call(f"w{i}", "note"), call(f"r{i}", "look"))
            right += int(seen) == i
        print(right)
    elif what == "reads":
        print(",".join(await asyncio.gather(*(call(id, "meet") for id in "abc"))))
    else:
        print(await call("the-id", "hold"))


asyncio.run(main())
