import { serve, tool } from "toolfleet/worker";
import { z } from "zod";

serve([tool({
  name: "orders_of", description: "The orders of a customer.", kind: "read",
  input: z.object({ customer: z.string() }),
  run: ({ customer }) => [{ id: "A-1001", customer }],
})]);
